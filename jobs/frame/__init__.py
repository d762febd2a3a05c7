"""What all jobs share: the run, its channel, its pace and its memory."""
