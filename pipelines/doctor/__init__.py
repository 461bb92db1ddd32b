"""What a platform still lacks for a run, asked read-only before anything is submitted or paid."""
