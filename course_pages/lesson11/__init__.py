"""What lesson 11 and its lab show: pictures and the explorer."""
