"""The official client, `kubernetes`: typed calls, watches, patches of every kind, pages, tokens, informers, leader election."""

import json
import queue
import threading
import unittest

from session import KUBECONFIG, PATIENCE_S, Session, main, until

from kubernetes import client, config, utils, watch
from kubernetes.informer import SharedInformer
from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock

WEB = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeSelector: {kubernetes.io/os: linux}
      containers: [{name: nginx, image: 'nginx:1.27', ports: [{containerPort: 80}]}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {minAvailable: 2, selector: {matchLabels: {app: web}}}
"""


class Objects(Session):
    def config_map(self, name, **data):
        body = client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name, labels={"group": name[0]}), data=data)
        return self.core.create_namespaced_config_map(self.ns, body)

    def test_an_object_is_created_read_replaced_and_deleted(self):
        created = self.config_map("crud", a="1")
        self.assertIsNotNone(created.metadata.uid)
        self.assertIsNotNone(created.metadata.creation_timestamp.tzinfo)
        self.refused(409, "Conflict", self.config_map, "crud")
        created.data["a"] = "2"
        replaced = self.core.replace_namespaced_config_map("crud", self.ns, created)
        self.assertNotEqual(replaced.metadata.resource_version, created.metadata.resource_version)
        refused = self.refused(409, "Conflict", self.core.replace_namespaced_config_map, "crud", self.ns, created)
        self.assertIn("the object has been modified", json.loads(refused.body)["message"])
        status = self.core.delete_namespaced_config_map("crud", self.ns)
        self.assertEqual((status["status"], status["details"]["uid"]), ("Success", created.metadata.uid))
        self.refused(404, "Not Found", self.core.read_namespaced_config_map, "crud", self.ns)

    def test_what_is_not_valid_is_refused_with_causes(self):
        service = {"metadata": {"name": "Bad_Name"}, "spec": {"ports": [{"port": 0}]}}
        refused = self.refused(422, "Unprocessable Entity", self.core.create_namespaced_service, self.ns, service)
        fields = {cause["field"] for cause in json.loads(refused.body)["details"]["causes"]}
        self.assertEqual(fields, {"metadata.name", "spec.ports[0].port", "spec.ports[0].targetPort"})
        tried = self.core.create_namespaced_config_map(self.ns, {"metadata": {"name": "dry"}}, dry_run="All")
        self.assertIsNotNone(tried.metadata.uid)
        self.refused(404, "Not Found", self.core.read_namespaced_config_map, "dry", self.ns)

    def test_every_kind_of_patch(self):
        apps = client.AppsV1Api()
        pod = {"containers": [{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}]}
        template = {"metadata": {"labels": {"app": "patched"}}, "spec": pod}
        spec = {"replicas": 0, "selector": {"matchLabels": {"app": "patched"}}, "template": template}
        apps.create_namespaced_deployment(self.ns, {"metadata": {"name": "patched"}, "spec": spec})

        def containers(patch, **options):
            patched = apps.patch_namespaced_deployment("patched", self.ns, patch, **options)
            return [(c.name, c.image) for c in patched.spec.template.spec.containers]

        # A dict is a strategic merge patch: containers are merged by their names.
        strategic = {"spec": {"template": {"spec": {"containers": [{"name": "b", "image": "b:2"}]}}}}
        self.assertEqual(containers(strategic), [("a", "a:1"), ("b", "b:2")])
        # A list is a JSON patch.
        operations = [
            {"op": "test", "path": "/spec/template/spec/containers/0/image", "value": "a:1"},
            {"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "a:2"},
        ]
        self.assertEqual(containers(operations), [("a", "a:2"), ("b", "b:2")])
        refused = self.refused(422, "Unprocessable Entity", containers, operations)
        self.assertIn("the server rejected our request", refused.body)
        # In a merge patch a list replaces the list.
        merge = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "c:1"}]}}}}
        self.assertEqual(containers(merge, _content_type="application/merge-patch+json"), [("c", "c:1")])

    def test_server_side_apply_owns_and_conflicts(self):
        apply = {"_content_type": "application/apply-patch+yaml"}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": {"a": "1", "b": "1"}}

        def send(manager, **options):
            return self.core.patch_namespaced_config_map("applied", self.ns, body, field_manager=manager, **apply, **options)

        self.assertEqual(send("one").metadata.managed_fields[0].operation, "Apply")
        body["data"] = {"a": "2"}
        refused = self.refused(409, "Conflict", send, "two")
        causes = json.loads(refused.body)["details"]["causes"]
        self.assertEqual([(c["reason"], c["field"]) for c in causes], [("FieldManagerConflict", ".data.a")])
        self.assertIn('conflict with "one"', causes[0]["message"])
        self.assertEqual(send("two", force=True).data, {"a": "2", "b": "1"})
        # What its only owner leaves out is removed.
        body["data"] = {}
        self.assertEqual(send("one").data, {"a": "2"})

    def test_lists_come_in_pages_of_one_snapshot_and_by_selectors(self):
        for index in range(7):
            self.config_map(f"page-{index}", index=str(index))
        page = self.core.list_namespaced_config_map(self.ns, limit=3, label_selector="group=p")
        self.assertIsNone(page.metadata.remaining_item_count)
        version, names, pages = page.metadata.resource_version, [], 0
        while True:
            pages += 1
            names += [item.metadata.name for item in page.items]
            if not page.metadata._continue:
                break
            # Written after the first page: no part of the snapshot.
            if pages == 1:
                self.config_map("page-99")
            more = {"_continue": page.metadata._continue}
            page = self.core.list_namespaced_config_map(self.ns, limit=3, label_selector="group=p", **more)
            self.assertEqual(page.metadata.resource_version, version)
        self.assertEqual(names, [f"page-{index}" for index in range(7)])
        self.assertEqual(pages, 3)

        def found(**selectors):
            return [item.metadata.name for item in self.core.list_namespaced_config_map(self.ns, **selectors).items]

        self.assertEqual(found(field_selector="metadata.name=page-3"), ["page-3"])
        self.assertEqual(found(label_selector="group in (p),group notin (q),!absent", limit=1), ["page-0"])
        self.assertEqual(found(label_selector="group=nobody"), [])
        refused = self.refused(400, "Bad Request", found, field_selector="spec.bogus=1")
        self.assertIn('"spec.bogus" is not a known field selector', json.loads(refused.body)["message"])
        self.refused(400, "Bad Request", found, label_selector="a in (")
        self.refused(400, "Bad Request", found, _continue="bogus")
        self.core.delete_collection_namespaced_config_map(self.ns, label_selector="group=p")
        self.assertEqual(found(label_selector="group=p"), [])

    def test_a_watch_goes_on_from_a_version_and_ends_in_time(self):
        listed = self.core.list_namespaced_config_map(self.ns)
        self.config_map("watched", a="1")
        self.core.patch_namespaced_config_map("watched", self.ns, {"data": {"a": "2"}})
        self.core.delete_namespaced_config_map("watched", self.ns)
        options = {"field_selector": "metadata.name=watched", "timeout_seconds": PATIENCE_S}
        stream, seen = watch.Watch(), []
        start = {"resource_version": listed.metadata.resource_version}
        for event in stream.stream(self.core.list_namespaced_config_map, self.ns, **start, **options):
            seen.append((event["type"], event["object"].data))
            if event["type"] == "DELETED":
                stream.stop()
        self.assertEqual(seen, [("ADDED", {"a": "1"}), ("MODIFIED", {"a": "2"}), ("DELETED", {"a": "2"})])
        # With no version the objects that are there come first, and the stream ends by itself.
        self.config_map("there")
        options = {"field_selector": "metadata.name=there", "timeout_seconds": 1}
        events = list(watch.Watch().stream(self.core.list_namespaced_config_map, self.ns, **options))
        self.assertEqual([event["type"] for event in events], ["ADDED"])

    def test_a_shared_informer_keeps_a_copy(self):
        informer = SharedInformer(self.core.list_namespaced_config_map, self.ns, label_selector="group=i")
        heard = []
        for kind in ["ADDED", "MODIFIED", "DELETED"]:
            informer.add_event_handler(kind, lambda map, kind=kind: heard.append((kind, map.metadata.name)))
        self.config_map("informed-before")
        informer.start()
        try:
            until("the informer lists", lambda: informer.cache.list())
            self.config_map("informed")
            until("the informer hears", lambda: ("ADDED", "informed") in heard)
            self.core.patch_namespaced_config_map("informed", self.ns, {"data": {"a": "1"}})
            until("the informer follows", lambda: ("MODIFIED", "informed") in heard)
            self.core.delete_namespaced_config_map("informed", self.ns)
            until("the informer forgets", lambda: ("DELETED", "informed") in heard)
            self.assertEqual([map.metadata.name for map in informer.cache.list()], ["informed-before"])
        finally:
            informer.stop()

    def test_generated_names_finalizers_owners_and_preconditions(self):
        owner = self.core.create_namespaced_secret(
            self.ns, {"metadata": {"generateName": "owner-", "finalizers": ["example.com/hold"]}, "stringData": {"k": "v"}}
        )
        self.assertRegex(owner.metadata.name, "^owner-[a-z0-9]{5}$")
        self.assertEqual(owner.data, {"k": "dg=="})
        reference = client.V1OwnerReference(api_version="v1", name=owner.metadata.name, uid=owner.metadata.uid, kind="Secret")
        meta = client.V1ObjectMeta(name="owned", owner_references=[reference])
        self.core.create_namespaced_config_map(self.ns, client.V1ConfigMap(metadata=meta))
        wrong = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid="another"))
        delete = self.core.delete_namespaced_secret
        self.refused(409, "Conflict", delete, owner.metadata.name, self.ns, body=wrong)
        delete(owner.metadata.name, self.ns)
        held = self.core.read_namespaced_secret(owner.metadata.name, self.ns)
        self.assertIsNotNone(held.metadata.deletion_timestamp)
        self.core.patch_namespaced_secret(owner.metadata.name, self.ns, {"metadata": {"finalizers": None}})
        self.refused(404, "Not Found", self.core.read_namespaced_secret, owner.metadata.name, self.ns)

        def names():
            return [map.metadata.name for map in self.core.list_namespaced_config_map(self.ns).items]

        until("what was owned is collected", lambda: "owned" not in names())


class Workloads(Session):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        import yaml

        utils.create_from_yaml(client.ApiClient(), yaml_objects=list(yaml.safe_load_all(WEB)), namespace=cls.ns)
        cls.apps = client.AppsV1Api()
        ready = lambda: (cls.apps.read_namespaced_deployment("web", cls.ns).status.ready_replicas or 0) == 2
        until("the Deployment is ready", ready)

    def pods(self):
        return self.core.list_namespaced_pod(self.ns, label_selector="app=web").items

    def test_scale_is_a_subresource(self):
        # A pod that another test has evicted may not be replaced yet.
        until("it has two pods", lambda: self.apps.read_namespaced_deployment_scale("web", self.ns).status.replicas == 2)
        scaled = self.apps.patch_namespaced_deployment_scale("web", self.ns, {"spec": {"replicas": 3}})
        self.assertEqual((scaled.kind, scaled.spec.replicas), ("Scale", 3))
        until("a third pod is ready", lambda: self.apps.read_namespaced_deployment("web", self.ns).status.ready_replicas == 3)

    def test_status_is_a_subresource(self):
        version = self.apps.read_namespaced_deployment("web", self.ns).metadata.generation
        patched = self.apps.patch_namespaced_deployment_status("web", self.ns, {"spec": {"replicas": 9}})
        self.assertEqual(patched.metadata.generation, version)
        self.assertNotEqual(patched.spec.replicas, 9)
        condition = {"type": "example.com/Seen", "status": "True"}
        pod = self.pods()[0].metadata.name
        self.core.patch_namespaced_pod_status(pod, self.ns, {"status": {"conditions": [condition]}})
        kept = {c.type for c in self.core.read_namespaced_pod_status(pod, self.ns).status.conditions}
        self.assertLessEqual({"example.com/Seen", "Ready", "ContainersReady"}, kept)

    def test_evictions_keep_to_the_budget(self):
        budget = lambda: client.PolicyV1Api().read_namespaced_pod_disruption_budget("web", self.ns).status
        self.apps.patch_namespaced_deployment_scale("web", self.ns, {"spec": {"replicas": 2}})
        until("nothing may go", lambda: budget().disruptions_allowed == 0 and budget().current_healthy == 2)
        name = self.pods()[0].metadata.name
        eviction = client.V1Eviction(metadata=client.V1ObjectMeta(name=name))
        refused = self.refused(429, "Too Many Requests", self.core.create_namespaced_pod_eviction, name, self.ns, eviction)
        self.assertIn("Cannot evict pod as it would violate the pod's disruption budget.", refused.body)
        client.PolicyV1Api().patch_namespaced_pod_disruption_budget("web", self.ns, {"spec": {"minAvailable": 1}})
        until("one may go", lambda: budget().disruptions_allowed == 1)
        self.core.create_namespaced_pod_eviction(name, self.ns, eviction)
        until("the pod is gone", lambda: name not in [pod.metadata.name for pod in self.pods()])

    def test_a_pod_is_bound_by_hand_and_its_log_is_read(self):
        node = self.core.list_node(label_selector="kubernetes.io/os=linux").items[0].metadata.name
        spec = {"schedulerName": "nobody", "containers": [{"name": "main", "image": "nginx:1.27"}]}
        self.core.create_namespaced_pod(self.ns, {"metadata": {"name": "bound"}, "spec": spec})
        target = client.V1ObjectReference(api_version="v1", kind="Node", name=node)
        binding = client.V1Binding(metadata=client.V1ObjectMeta(name="bound"), target=target)
        # The client takes the answer, a Status, for a Binding unless it is told to leave it alone.
        self.core.create_namespaced_pod_binding("bound", self.ns, binding, _preload_content=False)
        read = lambda: self.core.read_namespaced_pod("bound", self.ns)
        until("the pod runs", lambda: read().status.phase == "Running")
        self.assertEqual(read().spec.node_name, node)
        until("the container has said something", lambda: self.core.read_namespaced_pod_log("bound", self.ns))
        log = self.core.read_namespaced_pod_log("bound", self.ns, container="main", timestamps=True, tail_lines=1)
        self.assertRegex(log, r"^\d{4}-\d\d-\d\dT.*Z ")
        self.refused(400, "Bad Request", self.core.read_namespaced_pod_log, "bound", self.ns, container="other")
        stream = watch.Watch()
        for line in stream.stream(self.core.read_namespaced_pod_log, "bound", self.ns, follow=True):
            self.assertTrue(line)
            stream.stop()
        events = self.core.list_namespaced_event(self.ns, field_selector="involvedObject.name=bound").items
        self.assertIn("Started", {event.reason for event in events})
        self.core.delete_namespaced_pod("bound", self.ns, grace_period_seconds=0)
        self.refused(404, "Not Found", read)

    def test_a_job_completes(self):
        spec = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "busybox:1.36"}]}
        batch = client.BatchV1Api()
        batch.create_namespaced_job(self.ns, {"metadata": {"name": "once"}, "spec": {"template": {"spec": spec}}})
        until("the Job is complete", lambda: batch.read_namespaced_job_status("once", self.ns).status.succeeded == 1)
        batch.delete_namespaced_job("once", self.ns, propagation_policy="Background")


class Identity(Session):
    def test_a_token_is_a_way_in_with_the_rights_of_its_account(self):
        self.core.create_namespaced_service_account(self.ns, {"metadata": {"name": "robot"}})
        rbac = client.RbacAuthorizationV1Api()
        rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}
        rbac.create_namespaced_role(self.ns, {"metadata": {"name": "reader"}, "rules": [rule]})
        subject = {"kind": "ServiceAccount", "name": "robot", "namespace": self.ns}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
        rbac.create_namespaced_role_binding(self.ns, {"metadata": {"name": "robot"}, "roleRef": role, "subjects": [subject]})
        asked = client.AuthenticationV1TokenRequest(spec=client.V1TokenRequestSpec(audiences=[], expiration_seconds=600))
        token = self.core.create_namespaced_service_account_token("robot", self.ns, asked).status.token

        settings = client.Configuration()
        config.load_kube_config(KUBECONFIG, client_configuration=settings)
        settings.cert_file = settings.key_file = None
        settings.api_key = {"authorization": f"Bearer {token}"}
        robot = client.CoreV1Api(client.ApiClient(settings))
        self.assertTrue(robot.list_namespaced_config_map(self.ns).items)
        refused = self.refused(403, "Forbidden", robot.list_namespaced_secret, self.ns)
        self.assertIn(f"system:serviceaccount:{self.ns}:robot", refused.body)
        review = client.AuthenticationV1Api().create_token_review({"spec": {"token": token}})
        self.assertTrue(review.status.authenticated)
        settings.api_key = {"authorization": "Bearer bogus"}
        nobody = client.CoreV1Api(client.ApiClient(settings))
        self.refused(401, "Unauthorized", nobody.list_namespaced_config_map, self.ns)

    def test_leaders_are_elected_by_a_lease_and_followed_when_they_resign(self):
        led = queue.Queue()

        def candidate(name):
            def lead():
                resign = threading.Event()
                led.put((name, resign))
                resign.wait(PATIENCE_S)
                # The way to give up a term is to fail at it.
                raise RuntimeError(f"{name} resigns")

            terms = electionconfig.Config(
                LeaseLock("leader", self.ns, name),
                lease_duration=3,
                renew_deadline=2,
                retry_period=1,
                onstarted_leading=lead,
                onstopped_leading=lambda: None,
            )
            return threading.Thread(target=leaderelection.LeaderElection(terms).run, daemon=True)

        candidates = [candidate("one"), candidate("two")]
        for thread in candidates:
            thread.start()
        leaders = []
        for _ in candidates:
            name, resign = led.get(timeout=PATIENCE_S)
            leaders.append(name)
            lease = client.CoordinationV1Api().read_namespaced_lease("leader", self.ns)
            self.assertEqual(lease.spec.holder_identity, name)
            resign.set()
        self.assertEqual(sorted(leaders), ["one", "two"])
        # A thread that is still talking when the interpreter ends takes the whole process down.
        for thread in candidates:
            thread.join(PATIENCE_S)
            self.assertFalse(thread.is_alive())

    def test_the_server_says_who_it_is(self):
        self.assertEqual(client.VersionApi().get_code().minor, "36")
        self.assertIn("apps", [group.name for group in client.ApisApi().get_api_versions().groups])
        self.assertIn("pods", [resource.name for resource in self.core.get_api_resources().resources])


if __name__ == "__main__":
    main()
