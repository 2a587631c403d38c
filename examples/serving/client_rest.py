"""Asks TensorFlow Serving over REST, with the standard library alone.

python client_rest.py "The fox sold two hens." "A letter from London."
python client_rest.py "The fox sold hens." --pair "Hens were sold."
python client_rest.py --question "Who sold hens?" --context "The fox ..."
python client_rest.py --rows rows.jsonl
"""

import http.client
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from urllib.parse import quote

from rows import NoAnswer, Row, command_line, print_answers, rows_of

# Nothing was computed: the same request may go out again.
NO_SERVER = (502, 503)


def predict(
    url: str,
    rows: list[Row],
    signature: str = "serving_default",
    *,
    batch_size: int = 32,
    timeout: float = 10.0,
    retries: int = 3,
) -> Iterator:
    """The answers to rows, in their order.

    Args:
        url: of the model, see `model_url`.
        rows: inputs by name.
        signature: its name.
        batch_size: rows of a request.
        timeout: seconds to wait for an answer.
        retries: how often a request is repeated while there is no server.

    Returns:
        of each row the outputs by name; the output itself where there is but
        one.

    Raises:
        NoAnswer: the server refused a request, or did not answer it.
    """
    for first in range(0, len(rows), batch_size):
        body = {
            "signature_name": signature,
            "instances": rows[first : first + batch_size],
        }
        answer = _answer(f"{url}:predict", body, timeout, retries)
        try:
            yield from answer["predictions"]
        except (KeyError, TypeError):
            raise NoAnswer(
                f"expected predictions. Received: {str(answer)[:200]}"
            ) from None


def model_url(
    server: str,
    model: str,
    version: int | None = None,
    label: str | None = None,
) -> str:
    """Where a model is asked: the newest version, that number or that label."""
    url = f"{server.rstrip('/')}/v1/models/{quote(model, safe='')}"
    if version is not None:
        return f"{url}/versions/{version}"
    return url if label is None else f"{url}/labels/{quote(label, safe='')}"


def _answer(url: str, body: dict, timeout: float, retries: int):
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    for attempt in range(retries + 1):
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                return json.loads(response.read())
        except urllib.error.HTTPError as error:
            problem = f"{error.code} {_reason(error)}"
            if error.code not in NO_SERVER:
                break
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):  # no sooner with more requests
                problem = f"no answer within {timeout:g} s."
                break
            problem = f"no server ({reason})."
        except ValueError as error:
            problem = f"the answer is not JSON ({error})."
            break
        if attempt < retries:
            time.sleep(0.5 * 2**attempt)
    raise NoAnswer(problem)


def _reason(error: urllib.error.HTTPError) -> str:
    """What the server says of it; the status line of another server."""
    try:
        return json.loads(error.read())["error"]
    # The answer was cut off, or is not one of TensorFlow Serving.
    except (
        OSError,
        http.client.HTTPException,
        ValueError,
        LookupError,
        TypeError,
    ):
        return error.reason


def main(arguments: list[str] | None = None) -> int:
    """Prints a line of JSON for each row; returns the exit status."""
    parser = command_line(
        "Ask TensorFlow Serving over REST.", "--server", "http://localhost:8501"
    )
    options = parser.parse_args(arguments)
    if not options.server.startswith(("http://", "https://")):
        parser.error(
            "--server: expected http://HOST:PORT. Received: " + options.server
        )
    url = model_url(
        options.server, options.model, options.version, options.label
    )
    return print_answers(
        url,
        lambda: predict(
            url,
            rows_of(options),
            options.signature,
            batch_size=options.batch_size,
            timeout=options.timeout,
            retries=options.retries,
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
