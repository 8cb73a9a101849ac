"""The inputs that attention stretches most, and whether splitting tokens helps an attacker."""

from attnscope.studies.attack.rows import AttackConfig
from attnscope.studies.attack.study import Attack

__all__ = ["Attack", "AttackConfig"]
