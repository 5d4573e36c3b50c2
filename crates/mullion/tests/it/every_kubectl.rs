//! The commands whose requests differ between releases of kubectl (bodies in protobuf, server-side apply, streams, what only one of them
//! asks for), with every kubectl at hand.
//!
//! [`super::kubectl`] runs what people type most the same way; [`super::commands`] runs the rest with the kubectl on PATH.

use std::time::Instant;

use base64::{Engine as _, prelude::BASE64_STANDARD as STANDARD};
use rcgen::{CertificateParams, KeyPair};

use crate::{
    cluster::{Cluster, PATIENCE, text},
    kubectl::kubectls,
};

/// One kubectl in a namespace of its own.
struct Session<'c> {
    cluster: &'c Cluster,
    program: &'c str,
    namespace: String,
}

impl Session<'_> {
    /// Runs a line whose words are separated by single spaces, and says whether it succeeded, and what it printed.
    fn try_line(&self, line: &str, input: &str) -> (bool, String) {
        let line = line.replace("NS", &self.namespace);
        let mut args = vec!["--namespace", &self.namespace];
        args.extend(line.split(' '));
        let output = self.cluster.run(self.program, &args, input);
        let said = text(&output.stdout) + &text(&output.stderr);
        (output.status.success(), said)
    }

    #[track_caller]
    fn with(&self, line: &str, input: &str) -> String {
        let (succeeded, said) = self.try_line(line, input);
        assert!(
            succeeded,
            "{} {line}:\n{said}{}",
            self.program,
            self.cluster.stderr()
        );
        said
    }

    #[track_caller]
    fn run(&self, line: &str) -> String {
        self.with(line, "")
    }

    #[track_caller]
    fn all(&self, lines: &[&str]) {
        for line in lines {
            self.run(line);
        }
    }

    #[track_caller]
    fn refused(&self, line: &str, input: &str) -> String {
        let (succeeded, said) = self.try_line(line, input);
        assert!(!succeeded, "{} {line}:\n{said}", self.program);
        said
    }

    /// Runs a line until it prints something.
    #[track_caller]
    fn until(&self, line: &str, expected: &str) {
        let begun = Instant::now();
        loop {
            let (_, said) = self.try_line(line, "");
            if said.contains(expected) {
                return;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "{} {line}:\n{said}",
                self.program
            );
        }
    }
}

#[test]
fn every_kubectl_at_hand_gets_what_its_release_asks_for() {
    let config = [
        "--config",
        "eksctl-windows-nodegroup.yaml",
        "--speed",
        "max",
    ];
    let cluster = Cluster::start(&config);
    for (index, program) in kubectls().iter().enumerate() {
        let session = Session {
            cluster: &cluster,
            program,
            namespace: format!("every-{index}"),
        };
        session.run("create namespace NS");
        creates(&session);
        applies(&session);
        merges(&session);
        asks_who_may(&session);
        certifies(&session);
        looks_into_pods(&session);
        drains(&session);
        session.run("delete namespace NS --wait=false");
    }
}

/// Bodies of typed clients, which newer releases send in protobuf.
fn creates(s: &Session<'_>) {
    s.all(&[
        "create serviceaccount robot",
        "create configmap settings --from-literal=a=b",
        "create secret generic hidden --from-literal=a=b",
        "create deployment web --image=nginx:1.26 --replicas=2 --port=80",
        "create job once --image=busybox -- sh -c true",
        "create cronjob often --image=busybox --schedule=@hourly",
        "create job again --from=cronjob/often",
        "create service clusterip web --tcp=80",
        "create ingress way --rule=a.example/*=web:80",
        "create quota most --hard=pods=50",
        "create poddisruptionbudget web --selector=app=web --min-available=0",
        "create priorityclass NS --value=10",
        "create role reader --verb=get,list --resource=pods",
        "create rolebinding reader --role=reader --serviceaccount=NS:robot",
        "create clusterrole NS --verb=get --resource=nodes",
        "create clusterrolebinding NS --clusterrole=NS --user=jane",
        "set subject rolebinding reader --user=joe",
        "set env deployment/web --from=configmap/settings",
        "set resources deployment/web --limits=cpu=200m --requests=cpu=100m",
        "autoscale deployment web --min=2 --max=3",
        "get deployment web --subresource=scale",
        "patch deployment web --subresource=scale --type=merge -p {\"spec\":{\"replicas\":3}}",
        "scale deployment/web --current-replicas=3 --replicas=2",
        "wait deployment/web --for=jsonpath={.spec.replicas}=2 --timeout=30s",
        "get horizontalpodautoscalers,ingresses,cronjobs,jobs,resourcequotas,roles,rolebindings",
        "explain deployments --recursive",
        "delete priorityclass NS",
        "delete clusterrole NS",
        "delete clusterrolebinding NS",
    ]);
    assert_eq!(
        s.run("create token robot --duration=1h")
            .trim()
            .split('.')
            .count(),
        3
    );
}

fn applies(s: &Session<'_>) {
    let map = |data: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: shared, labels: {{set: all}}}}\ndata: {data}\n"
        )
    };
    s.with(
        "apply --server-side --field-manager=one -f -",
        &map("{a: '1'}"),
    );
    let other = "apply --server-side --field-manager=two -f -";
    let conflict = s.refused(other, &map("{a: '2'}"));
    assert!(
        conflict.contains("conflict with \"one\": .data.a"),
        "{conflict}"
    );
    s.with(&format!("{other} --force-conflicts"), &map("{a: '2'}"));
    s.with("replace --force -f -", &map("{a: '3'}"));
    s.with("apply -f -", &map("{a: '4'}").replace("shared", "kept"));
    s.with(
        "apply --prune -l set=all -f -",
        &map("{a: '4'}").replace("shared", "other"),
    );
    let left = s.run("get configmaps -l set=all -o name");
    assert!(
        left.contains("configmap/other") && !left.contains("configmap/kept"),
        "{left}"
    );
    let unknown = s.refused(
        "create --validate=strict -f -",
        &map("{a: '1'}\nnothing: 1"),
    );
    assert!(unknown.contains("unknown field \"nothing\""), "{unknown}");
    s.with("diff -f -", &s.run("get configmap other -o yaml"));
}

/// Of a kind that only newer releases know, apply asks the server's documents how to patch: lists are merged, not written over.
fn merges(s: &Session<'_>) {
    let policy = |expression: &str| {
        format!(
            r#"{{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy", "metadata": {{"name": "{name}"}}, "spec": {{
            "reinvocationPolicy": "Never", "failurePolicy": "Ignore",
            "matchConstraints": {{"resourceRules": [{{"apiGroups": ["nobody.example"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["things"]}}]}},
            "matchConditions": [{{"name": "own", "expression": "{expression}"}}],
            "mutations": [{{"patchType": "ApplyConfiguration", "applyConfiguration": {{"expression": "Object{{}}"}}}}]}}}}"#,
            name = s.namespace,
        )
    };
    s.with("apply -f -", &policy("true"));
    let other = r#"[{"op":"add","path":"/spec/matchConditions/-","value":{"name":"other","expression":"true"}}]"#;
    let kind = "mutatingadmissionpolicies.v1.admissionregistration.k8s.io";
    s.run(&format!("patch {kind} NS --type=json -p {other}"));
    s.with("apply -f -", &policy("false"));
    let conditions = "-o jsonpath={.spec.matchConditions}";
    let left = s.run(&format!("get {kind} NS {conditions}"));
    assert!(
        left.contains(r#"{"expression":"false","name":"own"}"#)
            && left.contains(r#""name":"other""#),
        "{} {left}",
        s.program
    );
    s.run(&format!("delete {kind} NS"));
}

fn asks_who_may(s: &Session<'_>) {
    assert!(s.run("auth can-i create pods").contains("yes"));
    assert!(
        s.run("auth can-i --list")
            .contains("selfsubjectaccessreviews.authorization.k8s.io")
    );
    let robot = "--as=system:serviceaccount:NS:robot";
    assert!(
        s.refused(&format!("auth can-i delete pods {robot}"), "")
            .contains("no")
    );
    let forbidden = s.refused(&format!("get secrets {robot}"), "");
    assert!(
        forbidden.contains("secrets is forbidden: User"),
        "{forbidden}"
    );
}

fn certifies(s: &Session<'_>) {
    let key = KeyPair::generate().expect("a key");
    let asked = CertificateParams::default().serialize_request(&key);
    let asked = asked.expect("a request").pem().expect("a text");
    let name = &s.namespace;
    let manifest = serde_json::json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
        "spec": {"request": STANDARD.encode(&asked), "signerName": "example.com/own", "usages": ["client auth"]},
    });
    s.with("create -f -", &manifest.to_string());
    assert!(s.run("certificate approve NS").contains("approved"));
    assert!(s.run("get csr NS").contains("Approved"));
    s.run("delete csr NS");
}

fn looks_into_pods(s: &Session<'_>) {
    s.all(&[
        "run one --image=nginx:1.27 --labels=app=one --port=80",
        "wait pod/one --for=condition=Ready --timeout=60s",
        "logs one --since=1h --timestamps --tail=2",
        "debug one --image=busybox --container=guest",
        "events --for pod/one",
        "cluster-info dump",
        "top pods",
    ]);
    assert!(s.run("logs -l app=one --prefix").contains("[pod/one/one]"));
    let gone = s.refused("logs one --previous", "");
    assert!(
        gone.contains("previous terminated container \"one\" in pod \"one\" not found"),
        "{gone}"
    );
    s.until(
        "get pod one -o jsonpath={.status.ephemeralContainerStatuses[0].state}",
        "running",
    );
    assert!(
        s.run("logs one -c guest")
            .contains("Container guest is simulated")
    );
    let refused = s.refused("exec one -- ls", "");
    assert!(
        refused.contains("container \"one\" of pod \"one\" is simulated"),
        "{refused}"
    );
}

fn drains(s: &Session<'_>) {
    let node = s.run("get nodes -l kubernetes.io/os=linux -o jsonpath={.items[0].metadata.name}");
    s.run(&format!("debug node/{node} --image=busybox"));
    s.run(&format!("drain {node} --disable-eviction --ignore-daemonsets --delete-emptydir-data --force --timeout=100s"));
    s.run(&format!("uncordon {node}"));
    s.run("delete pods --all --grace-period=0 --force");
    s.run("delete deployment web --cascade=orphan");
}
