"""What lesson 03 and its lab show: pictures and the explorer."""
