"""Limits of one run, which replace keys of the policy for this run only."""

from dataclasses import dataclass, replace

from dedupd_core.config.policy import Policy


@dataclass(frozen=True, slots=True)
class RunLimits:
    """The limits that a user sets for one run; None keeps the value of the policy."""

    min_age_s: float | None = None
    """The age for all paths, even those with an age in a rule."""
    min_age_s_max: float | None = None
    """A limit for the age of the policy and of each rule."""
    memory_bytes: int | None = None
    cores: int | None = None

    def applied(self, policy: Policy) -> Policy:
        """Return the policy for this run."""
        if self.min_age_s is not None:
            rules = tuple(replace(rule, min_age_s=None) for rule in policy.rules)
            policy = replace(policy, min_age_s=self.min_age_s, rules=rules)
        if (age_s := self.min_age_s_max) is not None:
            rules = tuple(
                rule
                if rule.min_age_s is None
                else replace(rule, min_age_s=min(rule.min_age_s, age_s))
                for rule in policy.rules
            )
            policy = replace(policy, min_age_s=min(policy.min_age_s, age_s), rules=rules)
        if self.memory_bytes is not None:
            policy = replace(policy, memory_bytes=self.memory_bytes)
        if self.cores is not None:
            policy = replace(policy, cores=self.cores)
        return policy
