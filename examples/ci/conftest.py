"""The fixture `checked`, which runs a program under `heaptrace check` if pytest is called with --heaptrace."""

import subprocess

import pytest


def pytest_addoption(parser):
    parser.addoption("--heaptrace", action="store_true", help="fail tests whose programs leak")


@pytest.fixture
def checked(request):
    """A function that runs a command and gives what it has written; the test fails if it fails or leaks."""

    def run(*command):
        if request.config.getoption("--heaptrace"):
            command = ["heaptrace", "check", "--", *command]
        ended = subprocess.run(command, capture_output=True, text=True)
        assert ended.returncode == 0, f"exit status {ended.returncode}\n{ended.stderr}"
        return ended.stdout

    return run
