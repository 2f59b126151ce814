"""What lesson 08 and its lab show: pictures and the explorer."""
