"""Attacks the login to the console and the credentials of all routes, of a broker with an identity provider and passwords.

Each worker is a browser with some sessions of its own. The broker must accept its proper logins and sessions, and must
refuse forged states, codes, cookies, tokens and passwords.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import urlsplit

from tests.fuzz_server.attack import Budget
from tests.fuzz_server.edge_attacks import each_worker
from tests.fuzz_server.http_attack import HttpAnswer, KeptConnection, Target, batches
from tests.fuzz_server.http_requests import HttpRequest, RequestMaker
from tests.fuzz_server.logins import (
    HOST,
    LOGIN,
    MAX_HEAD_BYTES,
    PAGE,
    RIGHTS,
    SESSION,
    SUPERUSER,
    WEAK,
    Attempt,
    Begun,
    Callback,
    LoginMaker,
    callback,
    cookie_line,
    request,
)
from tests.fuzz_server.tally import Tally
from tests.fuzz_server.tokens import TokenMaker
from tests.fuzz_server.websocket_sessions import TOPICS, handshake
from tests.support.identity_provider import IdentityProvider

MOST_WORKERS = 12
"""Below the limit of the broker's requests to the identity provider, above which it answers 429."""
MOST_SESSIONS = 3
"""Sessions of a worker. With all workers, fewer than `consoleOpenIDMaxSessions`."""
REFUSED = frozenset((400, 401, 403, 429, 431))
OPEN = re.compile(r"/(?:live|ready|status\.html|metrics|docs|console|console/[^/?]*)?/?(?:\?|$)")
"""Paths for which the broker requires no credentials."""
LOGOUT = "POST /console/logout"
AUTHORIZATION = re.compile(rb"Authorization: [^\r]*\r\n")


@dataclass(frozen=True)
class LoginTarget:
    """A broker with its identity provider."""

    url: str
    document: dict[str, Any]
    provider: IdentityProvider
    tokens: Callable[[Random], TokenMaker]


async def attack_with_logins(target: LoginTarget, count: int, seed: int, connections: int, tally: Tally) -> None:
    """Send at least `count` requests."""
    budget = Budget(count)

    async def work(number: int) -> None:
        random = Random(f"login {seed} {number}")
        await _Browser(random, target, tally).run(budget)

    await each_worker(min(connections, MOST_WORKERS), work)


class _Browser:
    def __init__(self, random: Random, target: LoginTarget, tally: Tally) -> None:
        self._random = random
        self._provider = target.provider
        self._tally = tally
        self._target = Target.of(target.url, tally)
        self._connection = KeptConnection(self._target)
        self._requests = RequestMaker(random, target.document)
        self._maker = LoginMaker(random, target.tokens(random))
        self._sessions: list[str] = []  # of the superuser
        self._sent = 0

    async def run(self, budget: Budget) -> None:
        steps: list[Callable[[], Awaitable[None]]] = [
            *[self._with_credentials] * 20,
            *[self._handshake] * 2,
            *[self._misused_login] * 3,
            *[self._login] * 2,
            *[self._odd_claims] * 1,
            *[self._odd_start] * 2,
            *[self._odd_cookies] * 2,
            *[self._logout] * 1,
        ]
        while budget.left > 0:
            self._sent = 0
            await self._random.choice(steps)()
            budget.left -= self._sent
        self._connection.close()

    # --- sending

    async def _send(self, *requests: HttpRequest) -> list[HttpAnswer | None]:
        self._sent += len(requests)
        if all(each.is_proper for each in requests):
            return await self._connection.send(requests)
        return [await self._target.send_alone(each) for each in requests]

    async def _ask(self, one: HttpRequest, *, expected: AbstractSet[int]) -> HttpAnswer | None:
        """Send a request whose answer must have one of the statuses."""
        (answer,) = await self._send(one)
        self._check(one, answer, expected)
        return answer

    def _check(self, one: HttpRequest, answer: HttpAnswer | None, expected: AbstractSet[int]) -> None:
        # A request without an answer is a fault already.
        if answer is not None and answer.status not in expected:
            self._tally.fault(f"{answer.status} {answer.body[:200]!r} to {one.kind}: {one.data[:1500]!r}")

    # --- logins

    async def _begun(self, **claims: Any) -> Begun | None:
        """Begin a login, up to the answer of the identity provider."""
        answer = await self._ask(request("login", "/console/login"), expected={302})
        if answer is None or answer.status != 302:
            return None
        back = urlsplit(self._provider.authorized(answer.header("location"), **claims))
        fields = dict(pair.split("=", 1) for pair in back.query.split("&"))
        return Begun(answer.cookies().get(LOGIN, ""), fields["state"], fields["code"])

    async def _complete(self, begun: Begun) -> str:
        """Complete a login. Return its session; "" if the broker refused it, which is a fault."""
        one = request("callback", begun.target, cookie_line(LOGIN, begun.cookie))
        answer = await self._ask(one, expected={302})
        return answer.cookies().get(SESSION, "") if answer is not None else ""

    async def _login(self) -> None:
        is_super = self._random.random() < 0.7
        role = SUPERUSER if is_super else WEAK
        begun = await self._begun(sub=role)
        session = await self._complete(begun) if begun is not None else ""
        if begun is None or not session:
            return
        await self._check_session(session, role)
        if self._random.random() < 0.5:
            one = request("repeated callback", begun.target, cookie_line(LOGIN, begun.cookie))
            await self._ask(one, expected={401})
        if is_super:
            self._sessions.append(session)
        if not is_super or len(self._sessions) > MOST_SESSIONS:
            await self._end(self._sessions.pop(0) if is_super else session)

    async def _check_session(self, session: str, role: str) -> None:
        one = request("session", RIGHTS, cookie_line(SESSION, session), PAGE)
        answer = await self._ask(one, expected={200})
        if answer is not None and f'"role":"{role}"'.encode() not in answer.body:
            self._tally.fault(f"the session of {role} has the rights {answer.body[:300]!r}")

    async def _end(self, session: str) -> None:
        cookie = cookie_line(SESSION, session)
        await self._ask(request("logout", "/console/logout", cookie, PAGE, method="POST"), expected={204})
        await self._ask(request("session after logout", RIGHTS, cookie, PAGE), expected={401})

    async def _misused_login(self) -> None:
        """Several wrong callbacks of one login."""
        begun, other = await self._begun(), await self._begun()
        if begun is None or other is None:
            return
        for _ in range(self._random.choice((1, 2, 5))):
            await self._refused(self._maker.callback(begun, other))

    async def _odd_claims(self) -> None:
        claims, accepted = self._maker.claims()
        begun = await self._begun(**claims)
        if begun is None:
            return
        cookie = cookie_line(LOGIN, begun.cookie)
        await self._refused(Callback(f"callback with odd {next(iter(claims))}", begun.target, cookie, accepted))

    async def _refused(self, wrong: Callback) -> None:
        one = request(wrong.kind, wrong.target, wrong.cookie)
        expected = REFUSED if wrong.accepted is False else REFUSED | {302}
        if wrong.kind == "forged cookie":
            expected = REFUSED - {401}  # The broker must not ask the identity provider.
        answer = await self._ask(one, expected=expected)
        session = answer.cookies().get(SESSION, "") if answer is not None else ""
        if session:
            await self._end_of_odd_role(session)

    async def _end_of_odd_role(self, session: str) -> None:
        cookie = cookie_line(SESSION, session)
        await self._ask(request("rights of an odd role", RIGHTS, cookie, PAGE), expected={200, 401, 403})
        await self._ask(request("logout", "/console/logout", cookie, PAGE, method="POST"), expected={204})

    async def _odd_start(self) -> None:
        """A login at another host, with wrong methods, or with odd parameters and cookies."""
        random, maker = self._random, self._maker
        method = random.choice(("GET", "GET", "GET", "POST", "PUT", "DELETE"))
        path = random.choice(
            ("/console/login", "/console/login", "/console/sign-in", "/console/callback", "/console/logout")
        )
        if random.random() < 0.4:
            path += random.choice(
                ("?", "?code=", "?state=&code=&error=", "/", "?state=%ff&state=%00", "?" + "a=b&" * 1000)
            )
        host = maker.odd_host() if random.random() < 0.5 else HOST.encode()
        lines = (maker.odd_cookies(),) if random.random() < 0.5 else ()
        one = request("odd start", path, *lines, method=method, host=host)
        await self._ask(one, expected=REFUSED | {200, 302, 404, 405, 421})

    async def _odd_cookies(self) -> None:
        """Cookies of no session: they give no rights, and end no session."""
        line = self._maker.odd_cookies()
        page = (PAGE,) if self._random.random() < 0.7 else ()
        (sign_in, rights, back, logout) = (
            request("odd cookies", "/console/sign-in", line, *page),
            request("odd cookies", RIGHTS, line, *page),
            request("odd cookies", callback("0" * 64, "x"), line, *page),
            request("odd cookies", "/console/logout", line, *page, method="POST"),
        )
        answer = await self._ask(sign_in, expected={200, 400, 431})
        if answer is not None and answer.status == 200 and b'"session":false' not in answer.body:
            self._tally.fault(f"{answer.body[:200]!r} to {line[:300]!r}")
        answers = await self._send(rights, back, logout)
        for one, answer, expected in zip(
            (rights, back, logout), answers, (REFUSED, {400, 431}, {204, 400, 431}), strict=True
        ):
            self._check(one, answer, expected)
        if self._sessions:
            await self._check_session(self._random.choice(self._sessions), SUPERUSER)

    async def _logout(self) -> None:
        if not self._sessions:
            return
        session = self._sessions.pop(self._random.randrange(len(self._sessions)))
        if self._random.random() < 0.3:  # a request of another page
            one = request("logout", "/console/logout", cookie_line(SESSION, session), method="POST")
            await self._ask(one, expected={400})
            await self._check_session(session, SUPERUSER)
        await self._end(session)

    # --- credentials

    def _attempt(self) -> Attempt:
        return self._maker.credentials(self._random.choice(self._sessions) if self._sessions else "")

    async def _with_credentials(self) -> None:
        """Requests of any route, each with its own credentials."""
        attempts = [self._attempt() for _ in range(self._random.choice((1, 2, 4, 8)))]
        requests = [self._request_with(attempt) for attempt in attempts]
        for batch in batches(requests):
            answers = await self._send(*(requests[number] for number in batch))
            for number, answer in zip(batch, answers, strict=True):
                self._check_attempt(attempts[number], requests[number], answer)

    def _request_with(self, attempt: Attempt) -> HttpRequest:
        while (drawn := self._requests.proper()).route == LOGOUT:
            pass  # It would end a session that other steps use.
        first, rest = AUTHORIZATION.sub(b"", drawn.data).split(b"\r\n", 1)
        lines = b"".join(line + b"\r\n" for line in attempt.lines)
        return HttpRequest(
            attempt.kind, drawn.route, first + b"\r\n" + lines + rest, is_proper=len(lines) < MAX_HEAD_BYTES
        )

    def _check_attempt(self, attempt: Attempt, one: HttpRequest, answer: HttpAnswer | None) -> None:
        if answer is None or OPEN.match(one.data.split(b" ", 2)[1].decode("latin-1")):
            return
        is_refused = answer.status in REFUSED
        if attempt.accepted is False and not is_refused:
            self._tally.fault(f"{attempt.kind} is accepted with {answer.status}: {one.data[:1500]!r}")
        # A refusal of a role names the role: its credentials are accepted.
        if attempt.accepted and answer.status == 401 and b"role '" not in answer.body:
            self._tally.fault(f"{attempt.kind} is refused with {answer.body[:200]!r}: {one.data[:1500]!r}")

    async def _handshake(self) -> None:
        """A WebSocket handshake with credentials."""
        role = self._random.choice(("producer", "reader"))
        attempt = self._attempt()
        data = handshake(f"/ws/v2/{role}/{self._random.choice(TOPICS)}")[:-2]
        data += b"".join(line + b"\r\n" for line in attempt.lines) + b"\r\n"
        one = HttpRequest(
            f"handshake, {attempt.kind}", f"GET /ws/v2/{role}", data, is_proper=len(data) < MAX_HEAD_BYTES
        )
        self._sent += 1
        self._check_attempt(attempt, one, await self._target.send_alone(one))
