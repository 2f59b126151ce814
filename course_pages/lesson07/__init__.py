"""What lesson 07 and its lab show: pictures and the explorer."""
