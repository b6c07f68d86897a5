"""Who approves what code does: rules in order, a person where a rule says so, and a record of every answer."""

from codeact_team.approval.approval_records import ApprovalRecord
from codeact_team.approval.approvals import Approvals
from codeact_team.approval.handlers import Answer, Handler, asking
from codeact_team.approval.input_function import ask_with
from codeact_team.approval.question import Question
from codeact_team.approval.rules import ApprovalRule

__all__ = [
    "Answer",
    "ApprovalRecord",
    "ApprovalRule",
    "Approvals",
    "Handler",
    "Question",
    "ask_with",
    "asking",
]
