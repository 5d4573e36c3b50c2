//! The rest of what kubectl has, with the one on PATH: every way to create, set, patch, apply, select, print, wait and delete.
//!
//! [`super::kubectl`] runs the commands people type most with every kubectl at hand; here each command runs once, for its result.

use crate::cluster::{Cluster, text};

/// One cluster, one namespace, many short commands.
struct Session {
    cluster: Cluster,
}

impl Session {
    fn start() -> Session {
        let config = [
            "--config",
            "eksctl-windows-nodegroup.yaml",
            "--speed",
            "max",
        ];
        Session {
            cluster: Cluster::start(&config),
        }
    }

    /// Runs a line; words are separated by single spaces.
    fn run(&self, line: &str) -> String {
        self.cluster.kubectl(&line.split(' ').collect::<Vec<_>>())
    }

    fn all(&self, lines: &[&str]) {
        for line in lines {
            self.run(line);
        }
    }

    /// Runs a line with a manifest on stdin and returns both outputs.
    fn with(&self, line: &str, input: &str) -> String {
        let args: Vec<_> = line.split(' ').collect();
        let output = self.cluster.run("kubectl", &args, input);
        assert!(
            output.status.success(),
            "kubectl {line}\n{}",
            text(&output.stderr)
        );
        text(&output.stdout) + &text(&output.stderr)
    }

    fn refused(&self, line: &str) -> String {
        self.cluster
            .refused(&line.split(' ').collect::<Vec<_>>(), "")
    }
}

#[test]
fn every_way_to_create_set_and_expose() {
    let s = Session::start();
    s.all(&[
        "create secret docker-registry reg --docker-username=a --docker-password=b --docker-server=x",
        "create service clusterip plain --tcp=80",
        "create service loadbalancer balanced --tcp=80",
        "create service externalname elsewhere --external-name=a.b",
        "create priorityclass high --value=1000 --description=x",
        "create serviceaccount robot",
        "create configmap settings --from-literal=a=b",
        "create deployment web --image=nginx:1.26 --replicas=2",
        "run one --image=nginx:1.27 --labels=app=one --port=80",
        "expose pod one --port=80 --name=one",
        "expose deployment web --port=80 --target-port=8080 --type=NodePort",
        "set image deployment/web nginx=nginx:1.27",
        "set env deployment/web --from=configmap/settings",
        "set resources deployment/web --limits=cpu=200m,memory=256Mi --requests=cpu=100m",
        "set serviceaccount deployment web robot",
        "set selector service plain app=web",
        "rollout status deployment/web --timeout=60s",
        "wait pod/one --for=jsonpath={.status.phase}=Running --timeout=60s",
    ]);
    let template = "jsonpath={.spec.template.spec.serviceAccountName}/{.spec.template.spec.containers[0].resources.limits.memory}\
                    /{.spec.template.spec.containers[0].env[0].valueFrom.configMapKeyRef.name}";
    assert_eq!(
        s.run(&format!("get deployment web -o {template}")),
        "robot/256Mi/settings"
    );
    let balanced =
        s.run("get service balanced -o jsonpath={.status.loadBalancer.ingress[0].hostname}");
    assert!(balanced.ends_with(".elb.amazonaws.com"), "{balanced}");
    s.all(&[
        "rollout history deployment/web --revision=1",
        "scale deployment/web --replicas=3 --current-replicas=2",
        "patch deployment web --subresource=scale --type=merge -p {\"spec\":{\"replicas\":1}}",
    ]);
    assert_eq!(
        s.run("get deployment web --subresource=scale -o jsonpath={.spec.replicas}"),
        "1"
    );
    s.run("patch pod one --subresource=status -p {\"status\":{\"conditions\":[{\"type\":\"x\",\"status\":\"True\"}]}}");
    s.run("wait pod/one --for=condition=x --timeout=10s");
    assert!(
        s.refused("rollout undo deployment/web --to-revision=99")
            .contains("99")
    );
    assert!(
        s.refused("scale deployment/web --replicas=2 --current-replicas=5")
            .contains("Expected replicas")
    );
}

#[test]
fn every_way_to_apply_and_to_print() {
    let s = Session::start();
    let map = |name: &str, value: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, labels: {{g: x}}}}\ndata: {{a: '{value}'}}\n"
        )
    };
    let (one, two) = (map("one", "1"), map("two", "1"));
    s.with("apply -f -", &one);
    assert!(
        s.with("apply -f - --dry-run=server", &one)
            .contains("unchanged (server dry run)")
    );
    assert!(
        s.run("apply view-last-applied configmap one")
            .contains("a: \"1\"")
    );
    assert!(
        s.with(
            "apply --server-side --force-conflicts -f -",
            &map("one", "2")
        )
        .contains("serverside-applied")
    );
    let conflict = s.cluster.refused(
        &["apply", "--server-side", "--field-manager=other", "-f", "-"],
        &one,
    );
    assert!(
        conflict.contains("conflict") && conflict.contains(".data.a"),
        "{conflict}"
    );
    let prune = "apply -f - --prune -l g=x --prune-allowlist=core/v1/ConfigMap";
    s.with(prune, &format!("{one}---\n{two}"));
    assert!(s.with(prune, &one).contains("configmap/two pruned"));
    assert!(s.with("replace --force -f -", &one).contains("replaced"));
    s.with("diff --server-side -f -", &one);

    let dir = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(dir.path().join("map.yaml"), &one).expect("writable");
    let kustomization = "resources: [map.yaml]\nnamePrefix: made-\n";
    std::fs::write(dir.path().join("kustomization.yaml"), kustomization).expect("writable");
    let dir = dir.path().display().to_string();
    assert!(
        s.run(&format!("apply -k {dir}"))
            .contains("configmap/made-one created")
    );
    s.run(&format!("delete -k {dir}"));

    s.all(&[
        "label configmap one l=1",
        "label configmap --all q=1",
        "annotate configmap one n=1",
        "annotate configmap one n-",
        "label configmap one q-",
    ]);
    assert!(
        s.refused("label configmap one l=2")
            .contains("--overwrite is false")
    );
    let forms = [
        "-o wide",
        "-o yaml",
        "-o json",
        "-o name",
        "--show-labels",
        "-o custom-columns=N:.metadata.name",
        "-o jsonpath={.items[*].metadata.name}",
        "-o go-template={{.kind}}",
        "--show-managed-fields -o yaml",
    ];
    let kinds = "pods,services,deployments,replicasets,daemonsets,configmaps,secrets,serviceaccounts,endpoints,endpointslices,leases,\
                 poddisruptionbudgets,persistentvolumeclaims,controllerrevisions,nodes,namespaces,priorityclasses,runtimeclasses,persistentvolumes,\
                 storageclasses,customresourcedefinitions,nodepools,nodeclaims,ec2nodeclasses";
    for form in forms {
        s.run(&format!("get {kinds} -A {form}"));
    }
    for kind in kinds
        .split(',')
        .filter(|kind| *kind != "customresourcedefinitions")
    {
        s.run(&format!("describe {kind}"));
    }
    let spread =
        s.run("get events -A --field-selector=involvedObject.kind=Pod,reason=Scheduled -o name");
    assert!(spread.contains("event/"), "{spread}");
    assert!(
        s.refused("get pods --field-selector=foo=bar")
            .contains("field label not supported: foo")
    );
    assert!(
        s.refused("get pods nope")
            .contains("pods \"nope\" not found")
    );
    assert!(s.run("top nodes").contains("CPU(cores)"));
    s.all(&[
        "get pods nope --ignore-not-found",
        "events -A --types=Warning",
        "api-resources -o wide",
        "explain deployment --recursive",
    ]);
}

#[test]
fn a_drain_may_ask_no_budget() {
    let s = Session::start();
    s.all(&[
        "create deployment web --image=nginx:1.27 --replicas=2",
        "create poddisruptionbudget web --selector=app=web --min-available=2",
        "rollout status deployment/web --timeout=60s",
        "wait poddisruptionbudget/web --for=jsonpath={.status.currentHealthy}=2 --timeout=60s",
    ]);
    let node = s.run("get pods -l app=web -o jsonpath={.items[0].spec.nodeName}");
    let drain = format!("drain {node} --ignore-daemonsets --delete-emptydir-data");
    let refused = s.refused(&format!("{drain} --timeout=1s"));
    assert!(
        refused.contains("Cannot evict pod as it would violate the pod's disruption budget"),
        "{refused}"
    );
    let here = format!(
        "get pods -l app=web --field-selector=spec.nodeName={node} -o jsonpath={{.items[*].metadata.name}}"
    );
    let before = s.run(&here);
    let drained = s.run(&format!("{drain} --disable-eviction --timeout=60s"));
    for pod in before.split(' ') {
        assert!(drained.contains(&format!("pod/{pod} deleted")), "{drained}");
    }
    assert_eq!(s.run(&here), "");
}

#[test]
fn every_way_to_wait_and_to_delete() {
    let s = Session::start();
    s.all(&[
        "create deployment web --image=nginx:1.27 --replicas=2",
        "run one --image=nginx:1.27",
        "run two --image=nginx:1.27",
        "wait pod --all --for=condition=Ready --timeout=60s",
    ]);
    assert!(
        s.refused("wait pod/one --for=condition=Nope --timeout=1s")
            .contains("timed out")
    );
    let node = s.run("get pod one -o jsonpath={.spec.nodeName}");
    let drain = format!("drain {node} --ignore-daemonsets --delete-emptydir-data --timeout=60s");
    assert!(s.refused(&drain).contains("declare no controller"));
    s.all(&[
        &format!("{drain} --force"),
        &format!("uncordon {node}"),
        &format!("drain {node} --dry-run=server --ignore-daemonsets --force"),
        &format!("taint nodes {node} a=b:NoSchedule"),
        &format!("taint nodes {node} a=c:NoSchedule --overwrite"),
        &format!("taint nodes {node} a-"),
        "delete pod one two --ignore-not-found --wait=false",
        "wait pod/two --for=delete --timeout=60s",
        "run three --image=nginx:1.27",
        "delete pod three --now",
        "run four --image=nginx:1.27",
        "delete pod four --force --grace-period=0",
        "rollout status deployment/web --timeout=60s",
        "delete deployment web --dry-run=server",
        "delete deployment web --cascade=orphan",
    ]);
    assert!(
        s.run("get replicasets -l app=web -o name")
            .contains("replicaset.apps/web-")
    );
    s.all(&[
        "delete replicaset -l app=web --cascade=foreground",
        "delete pods --all",
    ]);
    assert_eq!(s.run("get pods -o name"), "");
    assert!(s.refused("delete pod nope").contains("not found"));
}
