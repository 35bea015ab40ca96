"""Whether a Prefect server may be spoken to: one that others reach must ask who they are.

Without authentication whoever reaches a server reads every block's secret
(`?include_secrets=true`), approves any cost and starts any command on every worker; without CSRF
protection a page that a person has open can do the same in that person's name. Both are off by
default in Prefect.
"""

from __future__ import annotations

import ipaddress
import json
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from dataclasses import dataclass

from benchwright.errors import BadInput, Difference, GateRefused, Where

INSECURE_TAG = "insecure-server"
"""Tag of what was registered or started on a server that asks nobody who they are."""

CLOUD = (".prefect.cloud",)
"""Hosted by Prefect: signed in by an API key, over TLS; it has no settings of ours to check."""

ANSWER_S = 15.0
"""How long a server may take to answer (seconds)."""

AUTH_SETTING = "PREFECT_SERVER_API_AUTH_STRING"
CSRF_SETTING = "PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED"


@dataclass(frozen=True, slots=True)
class Protection:
    """What a server asks of those who reach it.

    Attributes:
        auth: It refuses requests without credentials.
        csrf: It refuses changes without a token that only its own pages and clients get.
    """

    auth: bool
    csrf: bool


def is_loopback(api_url: str) -> bool:
    """Whether only this machine reaches a server at this address."""
    host = urllib.parse.urlsplit(api_url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def protection(api_url: str, auth_string: str = "") -> Protection:
    """Ask a server what it asks.

    Args:
        api_url: Its address, as in `PREFECT_API_URL`.
        auth_string: `user:password` for it.

    Raises:
        BadInput: Nothing answers there, or it doesn't take the credentials.
    """
    base = api_url.rstrip("/")
    status, _ = _get(f"{base}/admin/version", "")
    auth = status in (401, 403)
    status, body = _get(f"{base}/csrf-token?client=benchwright", auth_string)
    if status in (401, 403):
        raise BadInput(
            "the Prefect server asks who you are"
            + (", and doesn't take what it was told" if auth_string else ""),
            where=Where(file=api_url, key="PREFECT_API_AUTH_STRING"),
            expected="user:password, as the server was started with",
        )
    return Protection(auth=auth, csrf=status == 200 and "token" in body)


def require_protected(api_url: str, auth_string: str = "", *, insecure: bool = False) -> bool:
    """Refuse a server that others reach and that asks nobody who they are.

    Args:
        api_url: Its address.
        auth_string: `user:password` for it.
        insecure: A person said that it is to be used all the same.

    Returns:
        Whether it is used in spite of a missing protection; callers leave a tag that says so.

    Raises:
        GateRefused: With a row for each missing protection.
        BadInput: Nothing answers there.
    """
    host = urllib.parse.urlsplit(api_url).hostname or ""
    if is_loopback(api_url) or host.endswith(CLOUD):
        return False
    found = protection(api_url, auth_string)
    rows = []
    if not found.auth:
        rows.append(
            Difference(
                AUTH_SETTING,
                "not set",
                "user:password",
                "whoever reaches it reads every secret and starts any command",
            )
        )
    if not found.csrf:
        rows.append(
            Difference(
                CSRF_SETTING,
                "false",
                "true",
                "a page that is open in a browser can act in its user's name",
            )
        )
    if rows and not insecure:
        raise GateRefused(
            "the Prefect server is reachable from other machines and isn't protected:"
            f" {', '.join(row.field for row in rows)}",
            differences=rows,
            where=Where(file=api_url),
            hint="set both where the server is started; in a network that you trust: --insecure",
        )
    return bool(rows)


def _get(url: str, auth_string: str) -> tuple[int, dict[str, object]]:
    headers = {"Accept": "application/json"}
    if auth_string:
        headers["Authorization"] = f"Basic {b64encode(auth_string.encode()).decode()}"
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=ANSWER_S
        ) as answer:
            body = json.loads(answer.read() or b"{}")
            return answer.status, body if isinstance(body, dict) else {}
    except urllib.error.HTTPError as refusal:
        return refusal.code, {}
    except (OSError, ValueError) as problem:
        raise BadInput(
            f"no Prefect server answers: {problem}",
            where=Where(file=url),
            hint="see PREFECT_API_URL; it ends in /api",
        ) from problem
