"""The page of ``shuffle-plugins app`` says what the accountant says, and to this machine alone."""

import json
import math
import socket
import subprocess
import sys

import pytest
from accounted import accounted
from scipy.stats import norm
from starlette.testclient import TestClient
from thinning import first_fast

from shuffle_plugins import cli, mechanisms
from shuffle_plugins.accounting import FEW_PUBLISHED, ShuffleRound, compare
from shuffle_plugins.cli import commands, output
from shuffle_plugins.cli.page import rendering, server, settings
from shuffle_plugins.cli.page.settings import Setting
from shuffle_plugins.planning import report_error

SMALL = {"population": "2000", "cohort": "200", "local-epsilon": "1", "rounds": "20", "delta": "1e-5"}
ROUND = ShuffleRound(local_epsilon=1.0, population=2000, cohort=200, channel_fixed=True)


@pytest.fixture
def client() -> TestClient:
    return TestClient(server.application(), base_url="http://127.0.0.1:8484")


def test_the_interval_is_the_accountants() -> None:
    expected = accounted(ROUND, num_steps=20).epsilon(1e-5)
    assert settings.bounds(Setting.read(SMALL)).interval == expected
    verdict = next(rendering.parts(SMALL))
    assert verdict.part == "verdict"
    assert output.interval(expected) in verdict.html


@first_fast(
    "changed",
    [
        {"mechanism": "k-rr", "dim": "7", "adversary": "server", "over": "cohort"},
        {},
        {"sampling": "full", "population": "200"},
        {"sampling": "poisson", "cohort": "150.5"},
        {"mechanism": "privunit", "dim": "50"},
    ],
)
def test_the_command_and_the_python_shown_give_the_same_interval(
    changed: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    setting = Setting.read(SMALL | changed)
    assert Setting.read(setting.query()) == setting
    found = settings.bounds(setting).interval
    assert cli.main([*setting.arguments(), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["lower"], printed["upper"]) == (found.lower, found.upper)
    assert setting.command().startswith("shuffle-plugins epsilon --population ")
    exec(compile(setting.python(), "shown", "exec"), {})
    assert capsys.readouterr().out.strip() == str(found)


@pytest.mark.parametrize(
    ("changed", "field", "sentence"),
    [
        ({"cohort": "3000"}, "cohort", "cohort must be in (0, population], got 3000 of 2000"),
        ({"rounds": "1.5"}, "rounds", "'1.5' is not a whole number"),
        ({"delta": ""}, "delta", "δ is missing: type a number"),
        ({"mechanism": "k-rr", "dim": "1"}, "dim", "categories must be at least 2 for k-rr, got dim=1"),
        ({"sampling": "<b>"}, "sampling", "'&lt;b&gt;' is not one of without-replacement,"),
        ({"cohort": "0.5"}, "cohort", None),
    ],
)
def test_a_refusal_is_the_accountants_sentence_beside_its_field(
    changed: dict[str, str], field: str, sentence: str | None
) -> None:
    (refused,) = rendering.parts(SMALL | changed)
    assert (refused.part, refused.field) == ("refused", field)
    shown = refused.html.replace("&#39;", "'")
    assert sentence is None or f">{sentence}" in shown
    if field == "cohort":
        with pytest.raises(ValueError, match="cohort") as error:
            ShuffleRound(
                local_epsilon=1.0, population=2000, cohort=float(changed["cohort"]), channel_fixed=True
            )
        assert str(error.value) in shown


def test_a_curve_asks_the_accountant_at_every_place() -> None:
    setting = Setting.read(SMALL)
    *_, points = settings.curve(setting, published=FEW_PUBLISHED[:1])
    assert [each.place for each in points] == [1, 3, 10, 20, 30, 100, 300, 1000]
    assert settings.places(setting)[0] == 20
    for each in (points[0], points[-1]):
        found = compare(
            shuffle_round=ROUND, num_steps=int(each.place), delta=1e-5, published=FEW_PUBLISHED[:1]
        )
        assert (each.found, each.local) == (found.interval, each.place)
        assert each.published == {b.name: b.epsilon for b in found.bounds if b.name in FEW_PUBLISHED}


def test_a_trusted_server_has_the_gaussian_mechanisms_epsilon() -> None:
    asked = SMALL | {"mechanism": "l2-block", "dim": "64", "adversary": "server"}
    found = settings.equally_noisy_gaussian(Setting.read(asked))
    assert isinstance(found, settings.CentralGaussian)
    variance = report_error("l2-block", local_epsilon=1.0, dim=64, radius=1.0, norm="l2").variance
    assert found.noise_multiplier == pytest.approx(math.sqrt(200 * variance / 64), rel=1e-12)
    mu = 2 * math.sqrt(20) / found.noise_multiplier  # twenty Gaussians are one (Dong, Roth, Su 2022)
    delta = norm.cdf(mu / 2 - found.epsilon / mu) - math.exp(found.epsilon) * norm.cdf(
        -mu / 2 - found.epsilon / mu
    )
    assert delta == pytest.approx(1e-5, rel=2e-3)
    assert delta <= 1e-5


def test_sliders_start_where_they_can_stand_and_every_position_can_be_read() -> None:
    for slider in commands.NUMBERS.values():
        assert slider.start in settings.slider_positions(slider)
        numbers = [slider.read(text) for text in settings.slider_positions(slider)]
        assert numbers == sorted(set(numbers))
    assert set(mechanisms.available(*mechanisms.ONE_MESSAGE)) - set(settings.offered_mechanisms()) == {
        "gaussian",
        "discrete-gaussian",
    }
    assert [settings.as_typed(value) for value in (6e4, 0.3, 1e-5, 1e20)] == ["60000", "0.3", "1e-5", "1e20"]


def test_the_page_is_filled_from_its_address(client: TestClient) -> None:
    found = client.get("/", params={"population": '7"><script>', "mechanism": "privunit", "over": "cohort"})
    assert found.status_code == 200
    assert 'value="7&#34;&gt;&lt;script&gt;"' in found.text
    assert '<option value="privunit" selected>' in found.text
    assert "default-src 'none'" in found.headers["content-security-policy"]
    assert "http" not in found.text.replace("http-equiv", ""), "nothing is loaded from elsewhere"
    for asset in ("page.js", "page.css", "icon.svg"):
        assert client.get(f"/static/{asset}").status_code == 200


def test_only_this_machine_and_the_page_itself_may_ask(client: TestClient) -> None:
    for host in ("shuffle.example", "127.0.0.1.example", "192.168.0.2:8484"):
        assert client.get("/", headers={"host": host}).status_code == 400
    assert client.get("/", headers={"host": "localhost:8484"}).status_code == 200
    for site in ("cross-site", "same-site"):
        assert client.get("/answer?delta=2", headers={"sec-fetch-site": site}).status_code == 403
        assert client.get("/", headers={"sec-fetch-site": site}).status_code == 200
    assert client.get("/", params={"population": "1" * 9000}).status_code == 414
    assert client.post("/answer").status_code == 405
    assert "access-control-allow-origin" not in client.get("/").headers


def test_parts_of_an_answer_are_given_one_by_one_from_any_place(monkeypatch) -> None:
    begun = []

    def parts(query):
        begun.append(query)
        return iter([rendering.Part(str(place), query["rounds"]) for place in range(3)])

    monkeypatch.setattr(rendering, "parts", parts)
    lines = [rendering.line({"rounds": "1"}, place) for place in range(4)]
    assert [each and json.loads(each)["part"] for each in lines] == ["0", "1", "2", None]
    assert len(begun) == 1
    assert json.loads(rendering.line({"rounds": "2"}, 1) or "")["html"] == "2"
    assert rendering.line({"rounds": "2"}, 2) == lines[2].replace('"1"', '"2"')
    assert len(begun) == 2


@pytest.mark.slow
def test_the_page_never_loads_torch() -> None:
    code = (
        "import sys; from itertools import islice\n"
        "from shuffle_plugins.cli.page import rendering, server\n"
        f"asked = {SMALL | {'mechanism': 'privunit', 'dim': '9'}!r}\n"
        "assert rendering.page(asked) and len(list(islice(rendering.parts(asked), 3))) == 3\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_port_that_cannot_be_had_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["app", "--port", "70000", "--no-browser"]) == 2
    assert "[0, 65535]" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert cli.main(["app", "--port", port, "--no-browser"]) == 2
    assert f"port {port} of 127.0.0.1 cannot be used" in capsys.readouterr().err


def test_the_command_says_which_package_the_page_needs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "shuffle_plugins.cli.page.server")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert cli.main(["app", "--no-browser"]) == 2
    assert "pip install 'shuffle-plugins[app]'" in capsys.readouterr().err
