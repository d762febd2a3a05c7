"""Limits of one run: they take the place of keys of the policy for this run alone."""

from dataclasses import dataclass, replace

from dedupd_core.config.policy import Policy


@dataclass(frozen=True, slots=True)
class RunLimits:
    """What a user asks of one run; None where the policy says it."""

    min_age_s: float | None = None
    """Of all paths: also of those that a rule has another age for."""
    min_age_s_max: float | None = None
    """The policy's age, and that of each rule, is not more than this."""
    memory_bytes: int | None = None
    cores: int | None = None

    def applied(self, policy: Policy) -> Policy:
        """The policy as this run goes by it."""
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
