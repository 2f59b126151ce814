"""What pages show: a folder for each lesson with its pictures and its explorer, and `shared/` for several."""
