"""What lesson 10 and its lab show: pictures and the explorer."""
