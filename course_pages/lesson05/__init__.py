"""What lesson 05 and its lab show: pictures and the explorer."""
