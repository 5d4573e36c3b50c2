//! What `mullion plan` takes from manifests: workloads without pods, objects that are given twice, templates for `--scale`, and warnings.

use serde_json::{Value, json};

use super::ask::{json_of, plan};
use crate::cluster::Cluster;

/// The template of pods that ask for one processor.
fn template() -> Value {
    let resources = json!({"requests": {"cpu": "1"}});
    json!({
        "metadata": {"labels": {"app": "a"}},
        "spec": {"containers": [{"name": "c", "image": "nginx", "resources": resources}], "restartPolicy": "Never"},
    })
}

fn job(name: &str, fields: Value) -> Value {
    let mut spec = fields;
    spec["template"] = template();
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec})
}

fn cron_job(name: &str, suspend: bool, of_run: Value) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": name},
        "spec": {"schedule": "@hourly", "suspend": suspend, "jobTemplate": {"spec": job("x", of_run)["spec"]}},
    })
}

fn deployment(name: &str, fields: Value) -> Value {
    let mut spec = fields;
    spec["selector"] = json!({"matchLabels": {"app": "a"}});
    spec["template"] = template();
    spec["template"]["spec"]["restartPolicy"] = json!("Always");
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec})
}

fn list(items: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

const OFFLINE: [&str; 6] = ["--offline", "--default-pools", "-f", "-", "-o", "json"];

#[test]
fn a_workload_that_makes_no_pods_is_not_planned_for_and_is_named() {
    let items = [
        job("later", json!({"suspend": true, "parallelism": 3})),
        cron_job("nightly", true, json!({})),
        cron_job("held", false, json!({"suspend": true})),
        deployment("none", json!({"replicas": 0})),
        deployment("paused", json!({"replicas": 2, "paused": true})),
        job("now", json!({"suspend": false})),
    ];
    let said = plan(&OFFLINE, &list(&items));
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
    let said = json_of(&said);
    assert_eq!(said["pods"]["asked"], 1, "{said}");
    assert_eq!(
        said["remarks"],
        json!([
            "CronJob default/held makes no pods: spec.jobTemplate.spec.suspend is true",
            "Deployment default/paused makes no pods: spec.paused is true",
            "Deployment default/none makes no pods: spec.replicas is 0",
            "Job default/later, CronJob default/nightly make no pods: spec.suspend is true",
        ])
    );
    // The number that the user asks for counts in place of the field.
    let scaled = [&OFFLINE[..], &["--scale", "job/later=3"]].concat();
    let both = json_of(&plan(&scaled, &list(&items[..1])));
    assert_eq!(both["then"]["pods"]["asked"], 3, "{both}");
    assert_eq!(both["then"]["remarks"], Value::Null);
}

#[test]
fn an_object_that_is_given_twice_counts_once_as_it_is_given_last() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str, items: &[Value]| {
        let path = directory.path().join(name);
        std::fs::write(&path, list(items)).expect("a file");
        path.display().to_string()
    };
    let first = file("first.yaml", &[deployment("web", json!({"replicas": 2}))]);
    let mut named = deployment("web", json!({"replicas": 5}));
    named["metadata"]["namespace"] = json!("default");
    let second = file("second.yaml", &[named]);
    let asked = |files: &[&str]| {
        let mut args = vec!["--offline", "--default-pools", "-o", "json"];
        files.iter().for_each(|file| args.extend(["-f", file]));
        let said = plan(&args, "");
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        let notes = said
            .stderr
            .replace(&format!("{}/", directory.path().display()), "");
        (json_of(&said)["pods"]["asked"].clone(), notes)
    };
    let note =
        "note:  first.yaml: items[0] (Deployment web) is given more than once, and counts once\n";
    assert_eq!(asked(&[&first, &first]), (json!(2), note.to_owned()));
    let note = "note:  second.yaml: items[0] (Deployment default/web) counts in place of first.yaml: items[0] (Deployment web), as with kubectl apply\n";
    assert_eq!(asked(&[&first, &second]), (json!(5), note.to_owned()));
    // Names that the API server makes are all different.
    let mut made = job("x", json!({}));
    made["metadata"] = json!({"generateName": "run-"});
    let runs = file("runs.yaml", &[made.clone(), made]);
    assert_eq!(asked(&[&runs]), (json!(2), String::new()));
}

#[test]
fn a_workload_of_a_saved_cluster_without_pods_is_scaled_by_its_template() {
    let mut web = deployment("web", json!({"replicas": 0}));
    web["metadata"]["namespace"] = json!("default");
    web["status"] = json!({"observedGeneration": 1});
    let db = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db", "namespace": "default"},
        "spec": {
            "replicas": 0, "serviceName": "db", "selector": {"matchLabels": {"app": "a"}},
            "template": web["spec"]["template"],
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {
                "storageClassName": "gp3", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "9Gi"}},
            }}],
        },
        "status": {"replicas": 0},
    });
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "gp3"},
        "provisioner": "ebs.csi.aws.com", "volumeBindingMode": "WaitForFirstConsumer",
    });
    let mut batch = job("batch", json!({"parallelism": 2, "suspend": true}));
    batch["metadata"]["namespace"] = json!("default");
    batch["status"] = json!({"conditions": []});
    let state = list(&[web, db, class, batch]);
    let scaled = |scale: &str| {
        let args = [
            "--state",
            "-",
            "--default-pools",
            "-o",
            "json",
            "--scale",
            scale,
        ];
        plan(&args, &state)
    };
    for (scale, said) in [
        (
            "deployment/web=200",
            "Deployment default/web has 200 pods in place of 0",
        ),
        (
            "sts/db=3",
            "StatefulSet default/db has 3 pods in place of 0",
        ),
        ("job/batch=4", "Job default/batch has 4 pods in place of 0"),
    ] {
        let ended = scaled(scale);
        assert_eq!(
            ended.code,
            Some(0),
            "{scale}: {}{}",
            ended.stdout,
            ended.stderr
        );
        let both = json_of(&ended);
        assert_eq!(both["whatIf"][0], said);
        let (_, pods) = scale.split_once('=').expect("a number");
        assert_eq!(both["then"]["pods"]["onNewNodes"].to_string(), pods);
    }
    let nothing = scaled("deployment/api=3");
    assert_eq!(nothing.code, Some(2));
    assert_eq!(
        nothing.stderr,
        "error: --scale: Deployment default/api has no pod and is not there itself, so nothing says what its pods ask for\n\
         hint:  -n NAME names its namespace; -f FILE brings its manifest\n"
    );
}

#[test]
fn what_admission_of_a_running_cluster_says_of_pods_is_said_by_a_plan() {
    let cluster = Cluster::start(&["--speed", "max"]);
    // Pending pods of the cluster's own would be planned for, too.
    let phases = "jsonpath={.items[*].status.phase}";
    cluster.until(
        "the provisioner's pod runs",
        &["get", "pods", "-A", "-o", phases],
        |phases| phases == "Running",
    );
    let kubeconfig = cluster.kubeconfig();
    let kubeconfig = kubeconfig.to_str().expect("a UTF-8 path");
    let asked = |args: &[&str], manifest: &[Value]| {
        let flags = ["--kubeconfig", kubeconfig, "-o", "json"];
        let file: &[&str] = if manifest.is_empty() {
            &[]
        } else {
            &["-f", "-"]
        };
        plan(&[&flags[..], file, args].concat(), &list(manifest))
    };
    let mut iis = deployment("iis", json!({"replicas": 2}));
    let spec = &mut iis["spec"]["template"]["spec"];
    spec["nodeSelector"] = json!({"kubernetes.io/os": "linux"});
    spec["containers"][0]["image"] =
        json!("mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2022");
    let warning = "note:  a pod of Deployment default/iis: judging by the names of its images, this pod asks for Linux nodes, which cannot run all of its containers: ";
    let said = asked(&[], &[iis]);
    assert!(said.stderr.starts_with(warning), "{}", said.stderr);
    assert_eq!(said.stderr.lines().count(), 1, "{}", said.stderr);

    // A workload without pods is asked for at the API server.
    let web = deployment("web", json!({"replicas": 0}));
    cluster.apply(&web.to_string());
    let said = asked(&["--scale", "deployment/web=2"], &[]);
    assert_eq!(
        json_of(&said)["then"]["pods"]["asked"],
        2,
        "{}",
        said.stderr
    );
    let said = asked(&["--scale", "deployment/nobody=2"], &[]);
    assert_eq!(said.code, Some(2), "{}", said.stderr);

    // All pods count towards a quota, not only the first of each workload.
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team"},
        "spec": {"hard": {"pods": "3"}},
    });
    cluster.apply(&quota.to_string());
    cluster.until(
        "the quota is counted",
        &["get", "quota", "team", "-o", "jsonpath={.status.used.pods}"],
        |used| used == "0",
    );
    let reason = |used: u64| {
        format!("exceeded quota: team, requested: pods=1, used: pods={used}, limited: pods=3")
    };
    let said = asked(&[], &[deployment("api", json!({"replicas": 5}))]);
    let refused = json!([{"pods": ["default/api-3", "default/api-4"], "reason": reason(3)}]);
    assert_eq!(json_of(&said)["refused"], refused, "{}", said.stderr);
    // The API server refuses the first pod of another version of a workload that fills the quota, which the new pods replace.
    cluster.kubectl(&["scale", "deployment", "web", "--replicas=3"]);
    cluster.until(
        "the quota is full",
        &["get", "quota", "team", "-o", "jsonpath={.status.used.pods}"],
        |used| used == "3",
    );
    let said = asked(&[], &[deployment("web", json!({"replicas": 3}))]);
    assert_eq!(said.code, Some(0), "{}{}", said.stdout, said.stderr);
    let note = "note:  a pod of Deployment default/web: the cluster's own webhooks and policies are not asked, because a quota refuses the pod at present\n";
    assert_eq!(said.stderr, note);
    let said = asked(&[], &[deployment("api", json!({"replicas": 1}))]);
    assert_eq!(said.code, Some(1), "{}", said.stderr);
    assert_eq!(json_of(&said)["refused"][0]["reason"], reason(3));
}
