//! The charts of `deploy/`: what helm makes of their values, and the program under the rights that they give.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    cluster::{Cluster, PATIENCE, text},
    installed::{Site, chart, clients::installed, each_part, process::Process, story},
    process::ended,
};

fn helm(major: &str) -> PathBuf {
    installed().join(format!("bin/helm-{major}"))
}

fn run(major: &str, args: &[&str]) -> Output {
    Command::new(helm(major))
        .args(args)
        .output()
        .expect("helm can be run")
}

/// What a helm prints, without the empty lines, in which versions differ; it must not fail.
fn said(major: &str, args: &[&str]) -> String {
    let output = run(major, args);
    assert!(
        output.status.success(),
        "helm {}:\n{}{}",
        args.join(" "),
        text(&output.stdout),
        text(&output.stderr)
    );
    let printed = text(&output.stdout);
    let lines = printed.lines().filter(|line| !line.trim().is_empty());
    lines.collect::<Vec<_>>().join("\n")
}

fn path(name: &str) -> String {
    chart(name).display().to_string()
}

/// The manifests of the chart, which have to be the same for both helms.
fn rendered(values: &[&str]) -> String {
    let chart = path("chart");
    let template = ["template", "mullion", &chart, "--namespace=mullion-system"];
    let args = [&template[..], values].concat();
    let manifests = said("3", &args);
    assert_eq!(manifests, said("4", &args));
    manifests
}

/// The example values that the documentation names.
fn values(name: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/installed");
    let file = file.join(name);
    format!("--values={}", file.display())
}

#[test]
fn both_helms_find_no_fault_with_the_charts() {
    for major in ["3", "4"] {
        for name in ["chart", "chart-crds"] {
            said(major, &["lint", "--strict", &path(name)]);
        }
        for file in ["values.yaml", "everything.yaml", "aws.yaml"] {
            said(major, &["lint", "--strict", &path("chart"), &values(file)]);
        }
    }
}

#[test]
fn what_the_chart_installs_by_itself() {
    insta::assert_snapshot!(rendered(&[]));
}

#[test]
fn what_the_chart_installs_where_every_value_says_something() {
    insta::assert_snapshot!(rendered(&[&values("everything.yaml")]));
}

#[test]
fn what_aws_changes_in_what_the_chart_installs() {
    let simulated = rendered(&["--set=cloud=simulated,settings.clusterName=demo"]);
    let aws = rendered(&[&values("aws.yaml")]);
    let only = |these: &str, those: &str, sign: char| -> Vec<String> {
        let those: BTreeSet<_> = those.lines().collect();
        let lines = these.lines().filter(|line| !those.contains(line));
        lines.map(|line| format!("{sign} {line}")).collect()
    };
    let changed = [only(&simulated, &aws, '-'), only(&aws, &simulated, '+')];
    insta::assert_snapshot!(changed.concat().join("\n"));
}

#[test]
fn a_scheduler_alone_gets_no_more_than_it_needs() {
    insta::assert_snapshot!(rendered(&[
        "--set=parts={scheduler},serviceAccount.create=false,serviceAccount.name=own"
    ]));
}

#[test]
fn wrong_values_are_refused_with_the_reason() {
    for (set, why) in [
        ("parts={kubelet}", "parts"),
        ("cloud=azure", "cloud"),
        ("replicas=two", "replicas"),
        ("logLevel=loud", "logLevel"),
        (
            "settings.interruptionQueue=q",
            "settings.interruptionQueue: only cloud=aws heeds it",
        ),
        (
            "settings.isolatedVPC=true,cloud=simulated,settings.clusterName=a",
            "settings.isolatedVPC: only cloud=aws heeds it",
        ),
        ("region=eu-west-1", "region: only cloud=aws heeds it"),
        ("region=Ireland", "region"),
        (
            "cloudEndpoint=http://a,cloud=aws,settings.clusterName=a",
            "cloudEndpoint: only cloud=simulated heeds it",
        ),
        ("cloud=aws,parts={ipam}", "settings.clusterName is missing"),
        (
            "cloud=aws,settings.clusterName=a,settings.clusterEndpoint=http://a",
            "clusterEndpoint",
        ),
        ("settings.clustername=demo", "clustername"),
        ("settings.batchMaxDuration=10", "batchMaxDuration"),
        (
            "settings.vmMemoryOverheadPercent=7.5",
            "vmMemoryOverheadPercent",
        ),
        (
            "settings.featureGates.spotToSpotConsolidation=true",
            "spotToSpotConsolidation",
        ),
        ("settings.featureGates.drift=true", "drift"),
        ("controller.image.digest=1234", "digest"),
        ("webhook.port=0", "port"),
        (
            "terminationGracePeriodSeconds=5",
            "terminationGracePeriodSeconds",
        ),
        (
            "parts={ipam}",
            "ipam have to know where instances come from: set cloud",
        ),
        (
            "parts={gmsa},cloud=simulated,settings.clusterName=a",
            "none of the parts asks a cloud",
        ),
        ("cloud=simulated", "settings.clusterName is missing"),
        (
            "networkPolicy.enabled=true",
            "networkPolicy.webhooksFrom is missing",
        ),
    ] {
        for major in ["3", "4"] {
            let set = format!("--set={set}");
            let output = run(major, &["template", "mullion", &path("chart"), &set]);
            let refusal = text(&output.stderr);
            assert!(!output.status.success(), "{set} is taken by helm {major}");
            assert!(refusal.contains(why), "{set}: {refusal}");
        }
    }
}

#[test]
fn the_chart_of_definitions_has_exactly_those_that_the_program_has() {
    let set = "--set=karpenter=true,gmsa=true,cniNodes=true,simulation=true,keep=false";
    let args = ["template", "kinds", &path("chart-crds"), set];
    let manifests = said("3", &args);
    assert_eq!(manifests, said("4", &args));
    let parse = |text: &str| -> Value { serde_saphyr::from_str(text).expect("YAML") };
    let mut found: Vec<_> = manifests
        .split("---\n")
        .filter(|part| part.contains("kind:"))
        .map(|part| {
            let mut object = parse(part);
            object["metadata"]
                .as_object_mut()
                .expect("an object")
                .remove("labels");
            object
        })
        .collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../api/crds");
    let files = folder.read_dir().expect("the folder is there");
    let mut known: Vec<_> = files
        .map(|file| {
            let file = file.expect("it can be read").path();
            let mut object = parse(&std::fs::read_to_string(file).expect("a file"));
            object["metadata"]
                .as_object_mut()
                .expect("an object")
                .remove("labels");
            object
        })
        .collect();
    let name = |object: &Value| object["metadata"]["name"].to_string();
    found.sort_by_key(name);
    known.sort_by_key(name);
    let names = |all: &[Value]| all.iter().map(name).collect::<Vec<_>>();
    assert_eq!(names(&found), names(&known));
    assert!(found == known, "a definition differs");
    // What is kept when a release goes says so.
    let kept = said("3", &["template", "kinds", &path("chart-crds")]);
    let kinds = kept.matches("kind: CustomResourceDefinition").count();
    assert_eq!(kept.matches("helm.sh/resource-policy: keep").count(), kinds);
}

/// Our API server alone, and a folder for the test.
fn start() -> (Process, TempDir, Site) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let kubeconfig = dir.path().join("kubeconfig");
    let mut command = Command::new(env!("CARGO_BIN_EXE_mullion"));
    command
        .args(["apiserver", "--port=0", "--kubeconfig"])
        .arg(&kubeconfig)
        // No controller makes service accounts, nor takes the taint off nodes that are ready.
        .arg("--disable-admission-plugins=ServiceAccount,TaintNodesByCondition")
        .env("XDG_STATE_HOME", dir.path().join("state"));
    let mut server = Process::start(&mut command, dir.path().join("server.log"));
    server.says("Ctrl-C");
    let site = Site::new(kubeconfig, dir.path().to_owned(), helm("3"));
    (server, dir, site)
}

#[test]
fn the_chart_s_roles_are_what_the_program_needs_and_no_more() {
    let (_server, _dir, site) = start();
    story(&site);
}

#[test]
fn each_part_alone_has_the_rights_that_it_needs() {
    let (_server, _dir, site) = start();
    each_part(&site);
}

/// The IAM policies of a template of `deploy/aws`: those in the text of the CloudFormation template, with the names of its references replaced by
/// those of the other one.
fn policies_of_cloudformation() -> Vec<Value> {
    let text = std::fs::read_to_string(chart("aws/cloudformation.yaml")).expect("a file");
    let names = [
        ("AWS::Partition", "Partition"),
        ("AWS::Region", "Region"),
        ("AWS::AccountId", "Account"),
        ("AWS::URLSuffix", "Suffix"),
        ("ClusterName", "Cluster"),
        ("NodeRole.Arn", "NodeRole"),
        ("Queue.Arn", "Queue"),
    ];
    let documents = text.split("Fn::Sub: |\n").skip(1).map(|rest| {
        let is_in = |line: &&str| line.starts_with("          ");
        let lines: Vec<_> = rest.lines().take_while(is_in).collect();
        let text = names.iter().fold(lines.join("\n"), |text, (from, to)| {
            text.replace(&format!("${{{from}}}"), &format!("${{{to}}}"))
        });
        serde_json::from_str(&text).expect("a policy is JSON")
    });
    documents.collect()
}

fn policies_of_terraform() -> Vec<Value> {
    let read = |name: &str| std::fs::read_to_string(chart("aws/terraform").join(name));
    ["machines.json", "surroundings.json"]
        .map(|name| serde_json::from_str(&read(name).expect("a file")).expect("a policy is JSON"))
        .into()
}

fn texts(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        other => {
            let all = other.as_array().into_iter().flatten();
            all.filter_map(Value::as_str).collect()
        }
    }
}

#[test]
fn both_templates_for_aws_have_the_same_policies() {
    assert_eq!(policies_of_cloudformation(), policies_of_terraform());
}

#[test]
fn policies_for_aws_fit_and_change_nothing_but_what_carries_the_cluster_s_tags() {
    for policy in policies_of_terraform() {
        // The longest name of a cluster, and the longest of all else.
        let longest = [
            ("Partition", 10),
            ("Region", 14),
            ("Account", 12),
            ("Suffix", 16),
            ("Cluster", 100),
            ("NodeRole", 110),
            ("Queue", 150),
        ];
        let text = longest
            .iter()
            .fold(policy.to_string(), |text, (name, length)| {
                text.replace(&format!("${{{name}}}"), &"x".repeat(*length))
            });
        let length = text
            .chars()
            .filter(|letter| !letter.is_whitespace())
            .count();
        assert!(length <= 6144, "{length} characters are too many");
        for statement in policy["Statement"].as_array().expect("a list") {
            let reads = |action: &&str| {
                let (_, call) = action.split_once(':').expect("service and call");
                ["Describe", "Get"].iter().any(|own| call.starts_with(own))
            };
            let actions = texts(&statement["Action"]);
            assert!(
                actions.iter().all(|action| !action.contains('*')),
                "{statement}"
            );
            let writes: Vec<_> = actions.iter().filter(|action| !reads(action)).collect();
            if writes.is_empty() {
                continue;
            }
            assert!(!texts(&statement["Resource"]).contains(&"*"), "{statement}");
            let condition = statement["Condition"].to_string();
            let is_tagged = condition.contains("Tag/kubernetes.io/cluster/${Cluster}");
            // What is there already is used, not changed; a role and a queue are named.
            let sid = statement["Sid"].as_str().expect("a name");
            let exceptions = [
                "LaunchFromWhatIsThere",
                "GiveNodesTheirRole",
                "ReadTheQueue",
            ];
            assert_eq!(is_tagged, !exceptions.contains(&sid), "{statement}");
        }
    }
}

#[test]
fn a_release_becomes_ready_on_two_nodes_and_is_upgraded_and_uninstalled() {
    let cluster = Cluster::start(&["--speed", "max"]);
    let helm = |args: &[&str]| {
        let mut command = Command::new(helm("4"));
        command
            .args(args)
            .arg("--namespace=mullion-system")
            .env("KUBECONFIG", cluster.kubeconfig())
            .env("HOME", cluster.home());
        let output = ended(&mut command, "", PATIENCE);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success(), "helm {args:?}: {said}");
    };
    let chart = path("chart");
    let wait = ["--wait", "--timeout=100s"];
    helm(
        &[
            &["install", "mullion", &chart, "--create-namespace"],
            &wait[..],
        ]
        .concat(),
    );
    let pods = cluster.get(&["pods", "-n", "mullion-system"]);
    let nodes = pods["items"].as_array().expect("a list").iter();
    let nodes: BTreeSet<_> = nodes
        .map(|pod| pod["spec"]["nodeName"].to_string())
        .collect();
    assert_eq!(nodes.len(), 2, "{nodes:?}");
    helm(
        &[
            &["upgrade", "mullion", &chart, "--set=logLevel=debug"],
            &wait[..],
        ]
        .concat(),
    );
    helm(&[&["uninstall", "mullion"], &wait[..]].concat());
    let left = "all,roles,rolebindings,poddisruptionbudgets,serviceaccounts";
    let left = cluster.kubectl(&["get", left, "-n", "mullion-system", "-o", "name"]);
    assert_eq!(left.trim(), "serviceaccount/default");
}
