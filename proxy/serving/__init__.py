"""The shell's loop: what happens is fed to the scheduler, what it says is done."""
