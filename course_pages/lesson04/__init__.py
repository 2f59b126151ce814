"""What lesson 04 and its lab show: pictures and the explorer."""
