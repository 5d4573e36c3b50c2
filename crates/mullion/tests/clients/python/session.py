"""What the Python sessions share: the kubeconfig of the cluster under test, a namespace for each class of tests, and waits that end."""

import faulthandler
import os
import time
import unittest

from kubernetes import client, config

KUBECONFIG = os.environ["KUBECONFIG"]
# How long anything may take before the test says what it waited for.
PATIENCE_S = 60


def until(what, ask):
    """Asks until the answer is true and returns it."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = ask()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {PATIENCE_S} s")
        time.sleep(0.05)


class Session(unittest.TestCase):
    """A class of tests with a namespace of its own, which is gone afterwards."""

    maxDiff = None

    @classmethod
    def setUpClass(cls):
        config.load_kube_config(KUBECONFIG)
        cls.core = client.CoreV1Api()
        cls.ns = cls.__name__.lower()
        cls.core.create_namespace({"metadata": {"name": cls.ns}})

    @classmethod
    def tearDownClass(cls):
        cls.core.delete_namespace(cls.ns)

    def refused(self, status, reason, call, *args, **kwargs):
        """Calls what must be refused, and returns the error."""
        with self.assertRaises(client.ApiException) as caught:
            call(*args, **kwargs)
        self.assertEqual((caught.exception.status, caught.exception.reason), (status, reason), caught.exception.body)
        return caught.exception


def main():
    """Runs a file's tests; where they hang, says where and ends."""
    faulthandler.dump_traceback_later(3 * PATIENCE_S, exit=True)
    unittest.main(verbosity=2)
