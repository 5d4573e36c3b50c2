"""kr8s: objects that know how to act, waits, watches, logs, classes for custom kinds, the asynchronous interface."""

import asyncio

import kr8s
import kr8s.asyncio
from kr8s.objects import ConfigMap, Deployment, Namespace, Node, Pod, Service, new_class

from session import KUBECONFIG, PATIENCE_S, Session, main, until


def deployment(name, namespace, replicas):
    container = {"name": "main", "image": "nginx:1.27", "ports": [{"containerPort": 80}]}
    pod = {"nodeSelector": {"kubernetes.io/os": "linux"}, "containers": [container]}
    template = {"metadata": {"labels": {"app": name}}, "spec": pod}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    return Deployment({"metadata": {"name": name, "namespace": namespace}, "spec": spec})


class Kr8s(Session):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.api = kr8s.api(kubeconfig=KUBECONFIG)

    def config_map(self, name, **data):
        return ConfigMap({"metadata": {"name": name, "namespace": self.ns, "labels": {"app": name}}, "data": data})

    def test_it_finds_its_way_around(self):
        self.assertEqual(self.api.version()["minor"], "36")
        self.assertIn("deployments", [resource["name"] for resource in self.api.api_resources()])
        self.assertIn("apps/v1", list(self.api.api_versions()))
        self.assertTrue(self.api.whoami())
        self.assertEqual(self.api.lookup_kind("deploy"), ("deployment.apps/v1", "deployments", True))

    def test_an_object_lives(self):
        map = self.config_map("lives", a="1")
        self.assertFalse(map.exists())
        map.create()
        self.assertTrue(map.exists())
        map.patch({"data": {"a": "2"}})
        self.assertEqual(map.data.a, "2")
        map.patch([{"op": "add", "path": "/data/b", "value": "3"}], type="json")
        map.label(tier="front")
        map.annotate(note="x")
        map.remove_label("tier")
        map.refresh()
        self.assertEqual((dict(map.data), dict(map.labels)), ({"a": "2", "b": "3"}, {"app": "lives"}))
        found = [found.name for found in kr8s.get("configmaps", namespace=self.ns, label_selector={"app": "lives"}, api=self.api)]
        self.assertEqual(found, ["lives"])
        found = [found.name for found in kr8s.get("cm", namespace=self.ns, field_selector={"metadata.name": "lives"}, api=self.api)]
        self.assertEqual(found, ["lives"])
        child = self.config_map("child")
        child.create()
        map.adopt(child)
        map.delete()
        until("it is gone", lambda: not map.exists())
        until("its child is collected", lambda: not child.exists())
        with self.assertRaises(kr8s.NotFoundError):
            ConfigMap.get("lives", namespace=self.ns, api=self.api)

    def test_lists_go_on_past_a_page(self):
        # kr8s asks for 100 at a time.
        for index in range(120):
            self.config_map(f"many-{index}").create()
        found = [map.name for map in kr8s.get("configmaps", namespace=self.ns, api=self.api) if map.name.startswith("many-")]
        self.assertEqual(len(set(found)), 120)
        self.assertEqual(len(found), 120)

    def test_a_deployment_is_scaled_and_its_pods_are_followed(self):
        web = deployment("web", self.ns, 1)
        web.create()
        web.wait("condition=Available", timeout=PATIENCE_S)
        web.scale(3)
        until("three pods are ready", lambda: web.ready() and len(web.pods()) == 3)
        pod = web.pods()[0]
        pod.wait(["condition=Ready", "condition=ContainersReady"], timeout=PATIENCE_S)
        self.assertTrue(until("it has said something", lambda: list(pod.logs())))
        service = Service({"metadata": {"name": "web", "namespace": self.ns}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}})
        service.create()
        self.assertEqual(len(service.ready_pods()), 3)
        pod.delete()
        pod.wait("delete", timeout=PATIENCE_S)
        web.delete(propagation_policy="Foreground")
        web.wait("delete", timeout=PATIENCE_S)
        self.assertEqual(list(kr8s.get("pods", namespace=self.ns, label_selector="app=web", api=self.api)), [])

    def test_nodes_are_cordoned_and_tainted(self):
        node = next(iter(kr8s.get("nodes", label_selector="kubernetes.io/os=linux", api=self.api)))
        node = Node.get(node.name, api=self.api)
        node.cordon()
        node.refresh()
        self.assertTrue(node.unschedulable)
        node.taint("a", "b", effect="PreferNoSchedule")
        self.assertIn("a", [taint["key"] for taint in node.taints])
        node.patch({"spec": {"taints": None}})
        node.uncordon()

    def test_custom_kinds_have_classes_of_their_own(self):
        pools = list(kr8s.get("nodepools", api=self.api))
        self.assertIn("windows-2022", [pool.name for pool in pools])
        NodePool = new_class(kind="NodePool", version="karpenter.sh/v1", namespaced=False)
        pool = NodePool.get("windows-2022", api=self.api)
        pool.patch({"spec": {"weight": 7}})
        self.assertEqual(NodePool.get("windows-2022", api=self.api).spec.weight, 7)
        with self.assertRaises(kr8s.ServerError) as caught:
            pool.patch({"spec": {"weight": 1000}})
        self.assertIn("spec.weight", str(caught.exception))

    def test_the_asynchronous_interface_watches(self):
        async def story():
            api = await kr8s.asyncio.api(kubeconfig=KUBECONFIG)
            seen = []

            async def follow():
                async for event, map in api.watch("configmaps", namespace=self.ns, label_selector="app=async"):
                    seen.append((event, map.name))
                    if event == "DELETED":
                        return

            following = asyncio.create_task(follow())
            map = await kr8s.asyncio.objects.ConfigMap(
                {"metadata": {"name": "async", "namespace": self.ns, "labels": {"app": "async"}}}, api=api
            )
            await map.create()
            # What ended before the watch began is not told.
            while not seen and not following.done():
                await asyncio.sleep(0.01)
            await map.annotate(note="x")
            await map.delete()
            await asyncio.wait_for(following, PATIENCE_S)
            return seen

        seen = asyncio.run(story())
        self.assertEqual(seen[-1], ("DELETED", "async"))


if __name__ == "__main__":
    main()
