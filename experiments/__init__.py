"""The longer runs behind the recorded curves of the chapters: seeded, resumable, one command each, as `recall` says."""
