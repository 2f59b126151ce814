"""What lesson 02 and its lab show: pictures and the explorer."""
