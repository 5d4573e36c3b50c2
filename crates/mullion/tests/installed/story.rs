//! What happens in the cluster while the program runs under the chart's rights: as much of all parts as one story has room for.

use std::{collections::BTreeSet, path::Path, process::Command, thread, time::Instant};

use serde_json::{Value, json};

use super::{Controller, LOOK, NAMESPACE, Process, Site, chart};
use crate::cluster::PATIENCE;

/// What the story may end without, and why the program may do it all the same.
const UNUSED: &[(&str, &str)] = &[
    (
        "delete resourceclaims.resource.k8s.io",
        "claims that were made for a pod are deleted when it gets no node after all",
    ),
    (
        "get resourceclaims.resource.k8s.io",
        "claims are read again when somebody else has written them meanwhile",
    ),
    (
        "patch resourceclaims/status.resource.k8s.io",
        "a pod that gets no node after all gives its devices back",
    ),
    (
        "patch resourceclaims/binding.resource.k8s.io",
        "kube-apiserver 1.36 asks for it in addition, in no request of its own",
    ),
    (
        "update resourceclaims/binding.resource.k8s.io",
        "kube-apiserver 1.36 asks for it in addition, in no request of its own",
    ),
    (
        "get persistentvolumeclaims",
        "claims are read where a node that goes has volumes attached",
    ),
    (
        "patch events",
        "an event that repeats is counted, and it depends on how soon nodes come whether one does",
    ),
    (
        "update secrets mullion-webhook-ca in mullion-system",
        "the authority is followed by another one after seven years",
    ),
];

/// The node groups that are there before anything is bought: one of each system.
pub(crate) const NODES: &str = "
apiVersion: eksctl.io/v1alpha5
kind: ClusterConfig
metadata: {name: mixed, region: us-west-2}
nodeGroups:
- {name: linux, instanceType: m5.large, desiredCapacity: 2}
- {name: windows, instanceType: m5.large, desiredCapacity: 1, amiFamily: WindowsServer2022CoreContainer, taints: {os: \"windows:NoSchedule\"}}
";

const NANO: &str = "mcr.microsoft.com/windows/nanoserver:ltsc2022";
const NGINX: &str = "docker.io/library/nginx:1.27";

fn pod(name: &str, spec: Value) -> Value {
    let mut spec = spec;
    spec["schedulerName"] = json!("mullion");
    spec["serviceAccountName"] = json!("default");
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"}, "spec": spec,
    })
}

fn container(image: &str, cpu: &str) -> Value {
    json!([{"name": "a", "image": image, "resources": {"requests": {"cpu": cpu}}}])
}

/// A NodePool and its EC2NodeClass.
fn pool(name: &str, alias: &str, os: &str, more: Value) -> [Value; 2] {
    let terms = json!([{"tags": {"karpenter.sh/discovery": "mixed"}}]);
    let class = json!({
        "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": {"name": name},
        "spec": {
            "amiSelectorTerms": [{"alias": alias}], "role": "KarpenterNodeRole-mixed",
            "subnetSelectorTerms": terms, "securityGroupSelectorTerms": terms,
        },
    });
    let mut pool = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name},
        "spec": {
            "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "1s"},
            "template": {
                "metadata": {"labels": {"pool": name}},
                "spec": {
                    "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": name},
                    "requirements": [
                        {"key": "kubernetes.io/os", "operator": "In", "values": [os]},
                        {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]},
                        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
                    ],
                },
            },
        },
    });
    if os == "windows" {
        // Pods of unknown images do not come here.
        let taint = json!([{"key": "os", "value": "windows", "effect": "NoSchedule"}]);
        pool["spec"]["template"]["spec"]["taints"] = taint;
    }
    if let (Some(spec), Value::Object(more)) = (pool["spec"].as_object_mut(), more) {
        spec.extend(more);
    }
    [class, pool]
}

impl Site {
    fn start_nodes(&self) -> Process {
        let config = self.dir.join("cluster.yaml");
        std::fs::write(&config, NODES).expect("a file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_mullion"));
        command
            .args(["nodes", "--speed=max", "--ipam=off", "--config"])
            .arg(config)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .env("XDG_STATE_HOME", self.dir.join("state"));
        if let Some(port) = self.aws_port {
            command.arg(format!("--aws-port={port}"));
        }
        let mut nodes = Process::start(&mut command, self.dir.join("nodes.log"));
        nodes.says(match self.aws_port {
            Some(_) => "simulated AWS account",
            None => "simulated EC2",
        });
        nodes
    }

    fn install_kinds(&self) {
        let kinds = chart("chart-crds").display().to_string();
        self.helm(&[
            "install",
            "kinds",
            &kinds,
            "--namespace",
            "default",
            "--set=cniNodes=true",
        ]);
        // kubectl gives up on a definition whose conditions are still null, as they are just after its creation.
        let wait = "wait --for=condition=Established crd --all --timeout=10s";
        let wait: Vec<&str> = wait.split(' ').collect();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let said = self.run(Path::new("kubectl"), &wait, "");
            if said.status.success() {
                break;
            }
            assert!(Instant::now() < deadline, "{said:?}");
            thread::sleep(LOOK);
        }
    }

    fn is_running(&self, pod: &str) -> bool {
        let phase = self.kubectl(&[
            "get",
            "pod",
            pod,
            "--ignore-not-found",
            "-o",
            "jsonpath={.status.phase}",
        ]);
        phase == "Running"
    }

    /// The names of objects.
    fn names(&self, kind: &str, selector: &str) -> Vec<String> {
        let names = self.kubectl(&["get", kind, "-l", selector, "-o", "name"]);
        names.lines().map(str::to_owned).collect()
    }

    fn holds(&self, object: &[&str], path: &str, wanted: &str) -> bool {
        let path = format!("jsonpath={path}");
        self.kubectl(&[&["get", "--ignore-not-found"], object, &["-o", &path]].concat()) == wanted
    }
}

/// Runs the story with all parts in one process, and demands that the rights are what it needs and no more.
pub(crate) fn run(site: &Site) {
    site.install_kinds();
    let values = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/installed/values.yaml");
    let _nodes = site.start_nodes();
    let cloud = format!("--set=cloud={}", site.cloud());
    let mut own = site.install("mullion", &["--values", values, &cloud]);
    own.process.says("this process leads");
    rules_about_pods(site, &mut own);
    volumes_and_devices(site, &mut own);
    nodes_are_bought_and_given_back(site, &mut own);
    mirrors(site, &mut own);
    preemption(site, &mut own);
    own.assert_allowed();
    let mut unused = own.unused();
    for (right, _) in UNUSED {
        unused.remove(*right);
    }
    let none = BTreeSet::new();
    assert_eq!(
        unused, none,
        "nothing uses these rights, and no reason is given"
    );
    let Controller { process, proxy, .. } = own;
    assert_eq!(process.terminate(), Some(0));
    assert!(
        super::refused(&proxy.asked()).is_empty(),
        "the end is refused"
    );
}

fn rules_about_pods(site: &Site, own: &mut Controller) {
    // The image says that the pod needs Windows, and the part ipam gives it an address.
    site.apply(&[
        pod("nano", json!({"containers": container(NANO, "100m")})),
        pod("web", json!({"containers": container(NGINX, "100m")})),
    ]);
    site.until("pods of both systems run", own, || {
        site.is_running("nano") && site.is_running("web")
    });
    let placed = &site.get(&["pod", "nano"])["spec"]["nodeSelector"]["kubernetes.io/os"];
    assert_eq!(placed, "windows");
    // Nobody knows this image: it waits at the gate. The registry would be asked with the secret.
    site.apply(&[
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson",
            "metadata": {"name": "pull", "namespace": "default"},
            "stringData": {".dockerconfigjson": "{\"auths\": {\"127.0.0.1:9\": {\"auth\": \"YTpi\"}}}"},
        }),
        pod("unknown", json!({
            "imagePullSecrets": [{"name": "pull"}], "containers": container("127.0.0.1:9/app:1", "100m"),
        })),
        json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "plain"}, "handler": "runc"}),
        pod("classy", json!({"runtimeClassName": "plain", "containers": container("127.0.0.1:9/b:1", "100m")})),
    ]);

    let gmsa = pod(
        "gmsa",
        json!({
            "containers": container(NANO, "100m"),
            "securityContext": {"windowsOptions": {"gmsaCredentialSpecName": "web"}},
        }),
    );
    let said = site.refused(&gmsa);
    assert!(said.contains("cred spec web does not exist"), "{said}");
    site.apply(&[
        json!({
            "apiVersion": "windows.k8s.io/v1", "kind": "GMSACredentialSpec", "metadata": {"name": "web"},
            "credspec": {"CmsPlugins": ["ActiveDirectory"]},
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": "web", "namespace": "default"},
            "rules": [{
                "apiGroups": ["windows.k8s.io"], "resources": ["gmsacredentialspecs"],
                "resourceNames": ["web"], "verbs": ["use"],
            }],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": "web", "namespace": "default"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "web"},
            "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}],
        }),
    ]);
    site.until("the pod is admitted with its identity", own, || {
        let output = site.run(
            "kubectl".as_ref(),
            &["create", "-f", "-"],
            &gmsa.to_string(),
        );
        output.status.success()
    });
    let options = &site.get(&["pod", "gmsa"])["spec"]["securityContext"]["windowsOptions"];
    assert_eq!(
        options["gmsaCredentialSpec"],
        r#"{"CmsPlugins":["ActiveDirectory"]}"#
    );
}

fn volumes_and_devices(site: &Site, own: &mut Controller) {
    let class = |name: &str, provisioner: &str| {
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
            "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer",
        })
    };
    let claim = |name: &str, class: &str| {
        json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "storageClassName": class, "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        })
    };
    let using = |name: &str| {
        json!({
            "nodeSelector": {"kubernetes.io/os": "linux"}, "containers": container(NGINX, "10m"),
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": name}}],
        })
    };
    site.apply(&[
        class("local", "kubernetes.io/no-provisioner"),
        class("disks", "example.com/disks"),
        json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk"},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "local",
                "hostPath": {"path": "/disk"},
            },
        }),
        claim("there", "local"),
        claim("made", "disks"),
        pod("there", using("there")),
        pod("made", using("made")),
    ]);
    // Where no controller of volumes runs, somebody else has to say this.
    let available = r#"{"status": {"phase": "Available"}}"#;
    let status = [
        "patch",
        "pv",
        "disk",
        "--subresource=status",
        "--type=merge",
        "-p",
        available,
    ];
    site.kubectl(&status);
    let node = &site.names("nodes", "kubernetes.io/os=linux")[0];
    let node = node.trim_start_matches("node/");
    site.apply(&[
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "cards"},
            "spec": {
                "selectors": [{"cel": {"expression": "device.driver == 'cards.example.com'"}}],
                "extendedResourceName": "example.com/card",
            },
        }),
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "cards"},
            "spec": {
                "driver": "cards.example.com", "nodeName": node,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "card-0"}, {"name": "card-1"}],
            },
        }),
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": "card", "namespace": "default"},
            "spec": {"devices": {"requests": [{"name": "card", "exactly": {"deviceClassName": "cards"}}]}},
        }),
        pod("card", json!({
            "nodeSelector": {"kubernetes.io/os": "linux"}, "resourceClaims": [{"name": "card", "resourceClaimName": "card"}],
            "containers": container(NGINX, "10m"),
        })),
    ]);
    // A claim is made for what is asked for as an amount.
    let limits = json!({"limits": {"cpu": "10m", "example.com/card": "1"}});
    site.apply(&[pod(
        "extended",
        json!({
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "containers": [{"name": "a", "image": NGINX, "resources": limits}],
        }),
    )]);
    site.until("the pod with an amount of devices has a node", own, || {
        site.holds(&["pod", "extended"], "{.spec.nodeName}", node)
    });
    site.until("the volume is set aside for its claim", own, || {
        site.holds(&["pv", "disk"], "{.spec.claimRef.name}", "there")
    });
    site.until("a node is named for the volume that is made", own, || {
        let path = "{.metadata.annotations.volume\\.kubernetes\\.io/selected-node}";
        !site.holds(&["pvc", "made"], path, "")
    });
    site.until("the device is the pod's, which has a node", own, || {
        site.holds(
            &["resourceclaim", "card"],
            "{.status.reservedFor[0].name}",
            "card",
        ) && site.holds(&["pod", "card"], "{.spec.nodeName}", node)
    });
}

fn nodes_are_bought_and_given_back(site: &Site, own: &mut Controller) {
    let bought = |name: &str| pool(name, "windows2022@latest", "windows", json!({}));
    site.apply(&bought("win"));
    site.apply(&[json!({
        "apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": {"name": "cheaper"},
        "spec": {"requirements": [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m5.large"]}], "price": "0.01"},
    })]);
    let wants = |pool: &str, image: &str| {
        json!({
            "nodeSelector": {"pool": pool}, "containers": container(image, "1"),
            "terminationGracePeriodSeconds": 1,
        })
    };
    site.apply(&[
        pod("first", wants("win", NANO)),
        pod("second", wants("win", NANO)),
    ]);
    site.until("nodes are bought for pods", own, || {
        site.is_running("first") && site.is_running("second")
    });
    site.until("the overlay counts", own, || {
        site.holds(
            &["nodeoverlay", "cheaper"],
            "{.status.conditions[?(@.type=='Ready')].status}",
            "True",
        )
    });
    // A claim that is deleted drains its node: the pods are evicted. What has no pods is given back.
    site.kubectl(&[
        "delete",
        "nodeclaims",
        "-l",
        "karpenter.sh/nodepool=win",
        "--timeout=90s",
    ]);
    site.until("evicted pods are gone", own, || {
        !site.is_running("first") && !site.is_running("second")
    });
    site.apply(&[pod("third", wants("win", NANO))]);
    site.until("a node is bought again", own, || site.is_running("third"));
    site.kubectl(&["delete", "pod", "third"]);
    site.until("an empty node is given back", own, || {
        site.names("nodeclaims", "karpenter.sh/nodepool=win")
            .is_empty()
    });
    // A pool with so many nodes, and room that is kept free.
    site.apply(&pool(
        "fixed",
        "al2023@latest",
        "linux",
        json!({"replicas": 1, "disruption": null}),
    ));
    site.apply(&[
        json!({
            "apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "chunk", "namespace": "default"},
            "template": {"spec": {"containers": container(NGINX, "1")}},
        }),
        json!({
            "apiVersion": "autoscaling.x-k8s.io/v1beta1", "kind": "CapacityBuffer",
            "metadata": {"name": "spare", "namespace": "default"},
            "spec": {"podTemplateRef": {"name": "chunk"}, "replicas": 1},
        }),
    ]);
    site.until("the pool has its node", own, || {
        let ready = "{.items[*].status.conditions[?(@.type=='Ready')].status}";
        site.holds(
            &["nodeclaims", "-l", "karpenter.sh/nodepool=fixed"],
            ready,
            "True",
        )
    });
    site.until("the buffer has a status", own, || {
        !site.holds(&["capacitybuffer", "spare"], "{.status.conditions}", "")
    });
    site.kubectl(&["delete", "nodepool", "fixed", "win", "--timeout=90s"]);
    // Where no garbage is collected, the claims of a pool outlive it.
    site.kubectl(&["delete", "nodeclaims", "--all", "--timeout=90s"]);
    site.kubectl(&["delete", "ec2nodeclass", "fixed", "win", "--timeout=90s"]);
}

fn mirrors(site: &Site, own: &mut Controller) {
    site.apply(&[
        json!({
            "apiVersion": "karpenter.sh/v1alpha5", "kind": "Provisioner", "metadata": {"name": "old"},
            "spec": {"providerRef": {"name": "old"}, "ttlSecondsAfterEmpty": 30},
        }),
        json!({
            "apiVersion": "karpenter.k8s.aws/v1alpha1", "kind": "AWSNodeTemplate", "metadata": {"name": "old"},
            "spec": {
                "subnetSelector": {"karpenter.sh/discovery": "mixed"},
                "securityGroupSelector": {"karpenter.sh/discovery": "mixed"}, "amiFamily": "AL2",
            },
        }),
    ]);
    site.until("the provisioner has a mirror", own, || {
        site.holds(&["nodepool", "old"], "{.metadata.name}", "old")
            && site.holds(&["ec2nodeclass", "old"], "{.metadata.name}", "old")
    });
    // Without an owner, no garbage collector is faster than the program.
    for mirror in ["nodepool/old", "ec2nodeclass/old"] {
        let patch = r#"--patch={"metadata": {"ownerReferences": null}}"#;
        site.kubectl(&["patch", mirror, "--type=merge", patch]);
    }
    site.kubectl(&["delete", "provisioner", "old"]);
    site.kubectl(&["delete", "awsnodetemplate", "old"]);
    site.until("the mirrors go, too", own, || {
        site.names("nodepools,ec2nodeclasses", "").is_empty()
    });
}

fn preemption(site: &Site, own: &mut Controller) {
    site.apply(&[
        json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "first"}, "value": 1000,
        }),
    ]);
    let low = |number: usize| {
        let spec = json!({
            "nodeSelector": {"kubernetes.io/os": "linux"}, "containers": container(NGINX, "1500m"),
            "terminationGracePeriodSeconds": 1,
        });
        pod(&format!("low-{number}"), spec)
    };
    site.apply(&[low(1), low(2)]);
    site.until("the nodes are full", own, || {
        site.is_running("low-1") && site.is_running("low-2")
    });
    site.apply(&[pod(
        "high",
        json!({
            "nodeSelector": {"kubernetes.io/os": "linux"}, "containers": container(NGINX, "1500m"),
            "priorityClassName": "first",
        }),
    )]);
    site.until("a pod of more weight has the place of another", own, || {
        site.is_running("high")
    });
    site.until("the gate opens for images that stay unknown", own, || {
        site.is_running("unknown") && site.is_running("classy")
    });
}

/// Runs each part alone, until it has used every right to list, and demands that nothing is refused.
pub(crate) fn run_each_part(site: &Site) {
    let parts = [
        "scheduler",
        "provisioner",
        "disruption",
        "ipam",
        "placement",
        "addresses",
        "gmsa",
    ];
    site.install_kinds();
    let _nodes = site.start_nodes();
    for part in parts {
        let mut values = vec![format!("--set=parts={{{part}}}")];
        if ["provisioner", "disruption", "ipam"].contains(&part) {
            let cloud = site.cloud();
            values.push(format!("--set=cloud={cloud},settings.clusterName=mixed"));
        }
        let values: Vec<_> = values.iter().map(String::as_str).collect();
        let mut own = site.install(part, &values);
        own.process.says(match part {
            "placement" | "addresses" | "gmsa" => "webhooks on https://",
            _ => "this process leads",
        });
        // Placement lists pools when a pod is to be placed.
        let is_later = |right: &str| part == "placement" && right.contains("nodepools");
        let is_list = |right: &String| right.starts_with("list ") && !is_later(right);
        let deadline = Instant::now() + PATIENCE;
        while own.unused().iter().any(is_list) {
            own.assert_allowed();
            assert!(
                Instant::now() < deadline && !own.process.has_ended(),
                "{part} never uses {:#?}\n{}",
                own.unused(),
                own.process.said()
            );
            thread::sleep(LOOK);
        }
        own.assert_allowed();
        let Controller { process, proxy, .. } = own;
        assert_eq!(process.terminate(), Some(0), "{part}");
        assert!(
            super::refused(&proxy.asked()).is_empty(),
            "the end of {part} is refused"
        );
        site.helm(&["uninstall", part, "--namespace", NAMESPACE]);
    }
}
