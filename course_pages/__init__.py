"""Code of single pages: a folder for each lesson with its pictures, explorer and checks, and `shared/` for several."""
