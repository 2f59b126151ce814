"""What lesson 06 and its lab show: pictures and the explorer."""
