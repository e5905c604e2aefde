"""Planning: what a policy, a size or a change would come to, before it is made."""
