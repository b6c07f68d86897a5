"""Files between the person and the workspace: what goes in, what a run has made or changed there, what comes out."""
