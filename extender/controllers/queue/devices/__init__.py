"""The devices of pods with ResourceClaims (DRA): allocated before the gates open, and taken back."""
