"""What lesson 09 and its lab show: pictures and the explorer."""
