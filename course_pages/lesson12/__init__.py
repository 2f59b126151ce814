"""What lesson 12 and its lab show: pictures and the explorer."""
