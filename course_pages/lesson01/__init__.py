"""What lesson 01 and its lab show: pictures and the explorer."""
