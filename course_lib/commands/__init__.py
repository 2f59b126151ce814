"""What the `course` command does: open JupyterLab, run lessons, look at this machine."""
