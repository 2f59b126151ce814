"""What lesson 13 and its lab show: pictures and the explorer."""
