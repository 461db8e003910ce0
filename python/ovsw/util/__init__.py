"""Small helpers of every part: text, progress, whole files, the check of pickles."""
