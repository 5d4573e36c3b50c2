"""The dynamic and the asynchronous client of `kubernetes`: discovery, custom resource definitions and their objects."""

import asyncio
import json

from session import KUBECONFIG, PATIENCE_S, Session, main, until

from kubernetes import aio, client, dynamic
from kubernetes.dynamic.exceptions import ConflictError, NotFoundError, UnprocessibleEntityError

WINDOW = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "windows.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "windows", "singular": "window", "kind": "Window", "shortNames": ["win"]},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {
                    "status": {},
                    "scale": {"specReplicasPath": ".spec.panes", "statusReplicasPath": ".status.panes"},
                },
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["panes"],
                                "properties": {
                                    "panes": {"type": "integer", "minimum": 1},
                                    "frame": {"type": "string", "default": "oak"},
                                },
                            },
                            "status": {"type": "object", "properties": {"panes": {"type": "integer"}}},
                        },
                    }
                },
            }
        ],
    },
}


def window(name, **spec):
    return {"apiVersion": "example.com/v1", "kind": "Window", "metadata": {"name": name}, "spec": spec}


class CustomObjects(Session):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        definitions = client.ApiextensionsV1Api()
        definitions.create_custom_resource_definition(WINDOW)

        def established():
            conditions = definitions.read_custom_resource_definition("windows.example.com").status.conditions or []
            return ("Established", "True") in [(c.type, c.status) for c in conditions]

        until("the definition is established", established)
        cls.definitions = definitions

    @classmethod
    def tearDownClass(cls):
        cls.definitions.delete_custom_resource_definition("windows.example.com")
        super().tearDownClass()

    def test_the_typed_client_handles_objects_without_types(self):
        api, of = client.CustomObjectsApi(), ["example.com", "v1", self.ns, "windows"]
        made = api.create_namespaced_custom_object(*of, window("typed", panes=2, bogus=1))
        self.assertEqual(made["spec"], {"panes": 2, "frame": "oak"})
        self.refused(422, "Unprocessable Entity", api.create_namespaced_custom_object, *of, window("bad", panes=0))
        strict = {"field_validation": "Strict"}
        unknown = window("unknown", panes=1, bogus=1)
        refused = self.refused(400, "Bad Request", api.create_namespaced_custom_object, *of, unknown, **strict)
        self.assertIn('unknown field "spec.bogus"', json.loads(refused.body)["message"])
        api.patch_namespaced_custom_object(*of, "typed", {"spec": {"panes": 3}})
        self.assertEqual(api.get_namespaced_custom_object_scale(*of, "typed")["spec"]["replicas"], 3)
        patched = api.patch_namespaced_custom_object_status(*of, "typed", {"status": {"panes": 3}, "spec": {"panes": 9}})
        self.assertEqual((patched["status"], patched["spec"]["panes"]), ({"panes": 3}, 3))
        self.assertEqual(len(api.list_cluster_custom_object("example.com", "v1", "windows")["items"]), 1)
        self.assertEqual(api.delete_namespaced_custom_object(*of, "typed")["status"], "Success")

    def test_the_dynamic_client_finds_and_applies_them(self):
        api = dynamic.DynamicClient(client.ApiClient())
        windows = api.resources.get(api_version="example.com/v1", kind="Window")
        self.assertEqual((windows.name, windows.short_names, windows.namespaced), ("windows", ["win"], True))
        with self.assertRaises(UnprocessibleEntityError):
            windows.create(window("none"), namespace=self.ns)
        applied = windows.server_side_apply(window("applied", panes=4), namespace=self.ns, field_manager="one")
        self.assertEqual(applied.spec.frame, "oak")
        with self.assertRaises(ConflictError):
            windows.server_side_apply(window("applied", panes=5), namespace=self.ns, field_manager="two")
        changed = windows.patch({"spec": {"frame": None}}, "applied", self.ns, content_type="application/merge-patch+json")
        self.assertEqual(changed.spec.frame, "oak")
        changed.spec.panes = 6
        self.assertEqual(windows.replace(changed, namespace=self.ns).metadata.generation, 2)
        self.assertEqual(windows.status.patch({"status": {"panes": 6}}, "applied", self.ns, content_type="application/merge-patch+json").status.panes, 6)
        version = windows.get(namespace=self.ns).metadata.resourceVersion
        windows.delete("applied", self.ns)
        for event in windows.watch(namespace=self.ns, resource_version=version, timeout=PATIENCE_S):
            self.assertEqual((event["type"], event["object"].metadata.name), ("DELETED", "applied"))
            break
        with self.assertRaises(NotFoundError):
            windows.get("applied", self.ns)

    def test_every_kind_that_discovery_names_can_be_listed(self):
        api = dynamic.DynamicClient(client.ApiClient())
        listed = 0
        for resource in api.resources.search():
            if "list" in (getattr(resource, "verbs", None) or []):
                self.assertTrue(api.get(resource).kind.endswith("List"), resource)
                listed += 1
        self.assertGreater(listed, 40)

    def test_openapi_describes_the_objects(self):
        api = dynamic.DynamicClient(client.ApiClient())

        def described():
            document = json.loads(api.request("get", "/openapi/v2", serialize=False).data)
            return document["definitions"].get("com.example.v1.Window")

        self.assertEqual(until("the schema is published", described)["properties"]["spec"]["required"], ["panes"])

    def test_tables_are_served(self):
        api = dynamic.DynamicClient(client.ApiClient())
        accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
        self.core.create_namespaced_config_map(self.ns, {"metadata": {"name": "row"}, "data": {"a": "b"}})
        path = f"/api/v1/namespaces/{self.ns}/configmaps"
        table = json.loads(api.request("get", path, header_params=accept, serialize=False).data)
        self.assertEqual([column["name"] for column in table["columnDefinitions"]], ["Name", "Data", "Age"])
        self.assertIn(["row", 1], [row["cells"][:2] for row in table["rows"]])

    def test_the_asynchronous_client_watches_while_it_writes(self):
        async def story():
            await aio.config.load_kube_config(KUBECONFIG)
            async with aio.client.ApiClient() as api:
                core, seen = aio.client.CoreV1Api(api), []

                async def follow():
                    async with aio.watch.Watch() as stream:
                        async for event in stream.stream(core.list_namespaced_config_map, self.ns, label_selector="a=b"):
                            seen.append((event["type"], event["object"].metadata.name))
                            if event["type"] == "DELETED":
                                return

                following = asyncio.create_task(follow())
                for index in range(10):
                    body = {"metadata": {"name": f"async-{index}", "labels": {"a": "b"}}}
                    await core.create_namespaced_config_map(self.ns, body)
                while not seen and not following.done():
                    await asyncio.sleep(0.01)
                await core.delete_namespaced_config_map("async-0", self.ns)
                await asyncio.wait_for(following, PATIENCE_S)
                return seen

        seen = asyncio.run(story())
        added = [name for kind, name in seen if kind == "ADDED"]
        self.assertEqual(sorted(set(added)), sorted(added))
        self.assertEqual(seen[-1], ("DELETED", "async-0"))


if __name__ == "__main__":
    main()
