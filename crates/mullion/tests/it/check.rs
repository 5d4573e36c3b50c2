//! `mullion check` as a user runs it: exit codes, stdin, files that are rewritten, formats, and what the examples and charts are told.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, text},
    command_line::mullion_with,
    registry,
};

const POD: &str = "# the shop\napiVersion: v1\nkind: Pod\nmetadata:\n  name: shop\nspec:\n  containers:\n  - name: shop\n    image: mcr.microsoft.com/windows/nanoserver:ltsc2022\n";
const LINUX: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: web, image: 'nginx:1.27'}]}\n";

/// Leaves out what the API server says of values and of missing fields: the objects are extracts, without the fields that no other rule reads.
const WITHOUT_VALUES: &[&str] = &["--ignore", "MUL083,MUL084"];

fn check(args: &[&str], stdin: &str) -> (Option<i32>, String, String) {
    let args: Vec<_> = ["check", "--images", "table"]
        .iter()
        .chain(args)
        .copied()
        .collect();
    let ended = mullion_with(&args, stdin);
    (ended.code, ended.stdout, ended.stderr)
}

fn examples() -> String {
    format!("{}/../../examples", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_code_says_whether_something_is_wrong() {
    let cases = [
        (LINUX, Some(0)),
        (POD, Some(1)),
        ("", Some(0)),
        ("a: b\n", Some(0)),
        ("a: [\n", Some(2)),
        (
            "apiVersion: v1\nkind: RuntimeClass\nmetadata: {name: {{ .Values.name }}}\n",
            Some(2),
        ),
    ];
    for (text, expected) in cases {
        let (code, stdout, stderr) = check(&["-"], text);
        assert_eq!(code, expected, "{text}\n{stdout}{stderr}");
    }
    let (code, _, stderr) = check(
        &["-"],
        "metadata: {name: {{ .Values.name }}}\nspec: {{- if }}\n",
    );
    assert_eq!(code, Some(2));
    assert!(
        stderr.contains("helm template CHART | mullion check -"),
        "{stderr}"
    );
    for (text, note) in [
        (LINUX, ""),
        (
            "hello\n",
            "note:  stdin: there is no object with a kind and an apiVersion, so nothing is checked\n",
        ),
    ] {
        let (code, _, stderr) = check(&["-"], text);
        assert_eq!((code, &*stderr), (Some(0), note));
    }
    let (_, _, stderr) = check(&["-"], "a: b: c\n");
    assert_eq!(
        stderr,
        "error: stdin: line 1 column 5: mapping values are not allowed in this context\n"
    );
    let (code, ..) = check(&["--select", "MUL999", "-"], "");
    assert_eq!(code, Some(2));
    let (code, _, stderr) = check(&["--live", "--kubeconfig", "/nowhere/config"], "");
    let hint = "hint:  start one with `mullion up`, or name its kubeconfig with --kubeconfig\n";
    assert_eq!(code, Some(2));
    assert!(stderr.ends_with(hint), "{stderr}");
}

#[test]
fn remarks_alone_are_no_failure() {
    let (code, stdout, _) = check(
        &["--select", "MUL033", "-"],
        "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: windows}\nhandler: h\n",
    );
    assert_eq!(code, Some(0), "{stdout}");
    assert!(stdout.contains("info"), "{stdout}");
}

#[test]
fn what_a_person_reads_names_object_line_rule_and_fix() {
    let (_, stdout, stderr) = check(&["-"], POD);
    assert_eq!(stderr, "");
    insta::assert_snapshot!(stdout);
}

#[test]
fn the_fixed_text_of_stdin_is_printed_and_has_no_finding_that_can_be_fixed() {
    let (_, fixed, told) = check(&["--fix", "-"], POD);
    assert!(fixed.starts_with("# the shop\n"), "{fixed}");
    insta::assert_snapshot!(fixed);
    assert!(told.contains("written in"), "{told}");
    let (_, again, _) = check(&["--fix", "-"], &fixed);
    assert_eq!(again, fixed);
    let (_, json, _) = check(&["-o", "json", "-"], &fixed);
    let answer: Value = serde_json::from_str(&json).expect("JSON");
    let safe = |finding: &Value| finding["fix"]["safe"] == true;
    let findings = answer["findings"].as_array().expect("a list");
    assert!(!findings.iter().any(safe), "{json}");
}

#[cfg(unix)]
#[test]
fn only_files_that_change_are_written_through_links_and_with_their_mode() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    fs::create_dir(at("below")).expect("a directory");
    fs::write(at("below/shop.yaml"), POD).expect("a file");
    fs::set_permissions(at("below/shop.yaml"), fs::Permissions::from_mode(0o640))
        .expect("its owner may");
    symlink(at("below/shop.yaml"), at("shop.yaml")).expect("a link");
    fs::write(at("web.yaml"), LINUX).expect("a file");
    let inode = |name: &str| fs::metadata(at(name)).expect("there").ino();
    let before = inode("web.yaml");
    let shown = directory.path().display().to_string();
    let (_, stdout, stderr) = check(&["--fix", &shown], "");
    assert!(stdout.contains("in 1 file."), "{stdout}{stderr}");
    assert!(
        fs::symlink_metadata(at("shop.yaml"))
            .expect("there")
            .is_symlink()
    );
    let written = fs::metadata(at("below/shop.yaml")).expect("there");
    assert_eq!(written.permissions().mode() & 0o777, 0o640);
    let text = fs::read_to_string(at("below/shop.yaml")).expect("readable");
    assert!(text.contains("kubernetes.io/os: windows"), "{text}");
    assert_eq!(inode("web.yaml"), before);
    let fixed = inode("below/shop.yaml");
    let (_, stdout, _) = check(&["--fix", &shown], "");
    assert!(stdout.contains("0 fixes written in 0 files."), "{stdout}");
    assert_eq!(inode("below/shop.yaml"), fixed);
}

#[test]
fn a_directory_is_checked_with_those_in_it_but_for_charts_and_hidden_ones() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    for name in ["base", "overlays/north", "charts/shop/templates", ".git"] {
        fs::create_dir_all(at(name)).expect("a directory");
    }
    fs::write(at("base/pod.yaml"), POD).expect("a file");
    fs::write(at("overlays/north/pod.yaml"), POD).expect("a file");
    fs::write(at(".git/pod.yaml"), "no: [manifest").expect("a file");
    fs::write(at("charts/shop/Chart.yaml"), "name: shop").expect("a file");
    let template = "{{ if .Values.web }}\n- kind: Pod\n{{ end }}\n";
    fs::write(at("charts/shop/templates/pod.yaml"), template).expect("a file");
    let shown = directory.path().display().to_string();
    let (code, stdout, stderr) = check(&["--select", "MUL001", &shown], "");
    assert_eq!(code, Some(1), "{stdout}{stderr}");
    for file in ["/base/pod.yaml", "/overlays/north/pod.yaml"] {
        assert!(stdout.contains(&(shown.clone() + file)), "{stdout}");
    }
    assert!(stdout.contains("2 errors in 2 objects."), "{stdout}");
    let chart = format!("{shown}/charts/shop");
    let note = format!(
        "note:  {chart} is a Helm chart and is passed over: helm template {chart} | mullion check -\n"
    );
    assert_eq!(stderr, note);
}

#[cfg(unix)]
#[test]
fn what_cannot_be_read_is_named_and_the_rest_is_checked() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    fs::write(at("a.yaml"), "no: [manifest").expect("a file");
    fs::write(at("b.yaml"), b"apiVersion: v1\nkind: Caf\xe9\n").expect("a file");
    std::os::unix::fs::symlink(at("nowhere"), at("c.yaml")).expect("a link");
    std::os::unix::fs::symlink("host.1", at(".#d.yaml")).expect("a link");
    fs::write(at("d.yaml"), POD).expect("a file");
    let shown = directory.path().display().to_string();
    let (code, stdout, stderr) = check(&["--select", "MUL001", &shown], "");
    assert_eq!(code, Some(2), "{stdout}{stderr}");
    assert!(stdout.contains("1 error in 1 object."), "{stdout}");
    assert!(
        stderr.starts_with("error: 3 files are not checked\n"),
        "{stderr}"
    );
    for why in [
        "a.yaml: line 1 column 5: ",
        "b.yaml cannot be read: ",
        "c.yaml cannot be read: ",
    ] {
        assert!(stderr.contains(&format!("  {shown}/{why}")), "{stderr}");
    }
    let (code, json, _) = check(&["-o", "json", "--select", "MUL001", &shown], "");
    let answer: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        (code, answer["unread"].as_array().map(Vec::len)),
        (Some(2), Some(3)),
        "{json}"
    );
    // The fixes of the other files are written.
    let (code, _, _) = check(&["--fix", "--select", "MUL001", &shown], "");
    assert_eq!(code, Some(2));
    let fixed = fs::read_to_string(at("d.yaml")).expect("readable");
    assert!(fixed.contains("kubernetes.io/os: windows"), "{fixed}");
}

#[test]
fn programs_are_told_the_causes_even_if_no_file_can_be_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("a.yaml");
    fs::write(&file, "no: [manifest").expect("a file");
    let shown = file.display().to_string();
    let (code, json, stderr) = check(&["-o", "json", &shown], "");
    assert_eq!(code, Some(2), "{stderr}");
    let answer: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(answer["unread"].as_array().map(Vec::len), Some(1), "{json}");
    assert_eq!(answer["objects"], 0);
    let (code, stdout, _) = check(&[&shown], "");
    assert_eq!((code, &*stdout), (Some(2), ""));
}

#[test]
fn empty_documents_move_neither_lines_nor_fixes() {
    let text = format!("---\n---\n# nothing\n---\n{POD}");
    let (_, stdout, _) = check(&["--select", "MUL001", "-"], &text);
    assert!(stdout.contains("writes 1"), "{stdout}");
    assert!(stdout.contains("\n   10  error  MUL001"), "{stdout}");
    let (_, fixed, told) = check(&["--fix", "--select", "MUL001", "-"], &text);
    assert!(told.contains("1 fix written in 1 file."), "{told}");
    assert!(fixed.contains("kubernetes.io/os: windows"), "{fixed}");
    assert!(
        fixed.starts_with("---\n---\n# nothing\n---\n# the shop\n"),
        "{fixed}"
    );
}

#[test]
fn files_of_a_chart_are_passed_over_and_its_templates_left_to_helm() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    fs::create_dir_all(at("shop/templates/web")).expect("a directory");
    fs::write(at("shop/Chart.yaml"), "name: shop").expect("a file");
    let values = "kind: Deployment\nmetadata: {labels: {a: b}}\n";
    fs::write(at("shop/values-prod.yaml"), values).expect("a file");
    fs::write(at("values.yaml"), values).expect("a file");
    let chart = at("shop").display().to_string();
    let shown = at("shop/values-prod.yaml").display().to_string();
    let (code, _, stderr) = check(&[&shown], "");
    let note = format!(
        "note:  {shown} has values of a Helm chart and is passed over: helm template {chart} | mullion check -\n"
    );
    assert_eq!((code, stderr), (Some(0), note));
    let templates = at("shop/templates/web").display().to_string();
    let (code, _, stderr) = check(&[&templates], "");
    assert_eq!(code, Some(2));
    let hint = format!("hint:  helm template {chart} | mullion check -\n");
    assert!(stderr.ends_with(&hint), "{stderr}");
    // Beside no chart, nothing says that these are values.
    let (code, stdout, _) = check(&[&at("values.yaml").display().to_string()], "");
    assert_eq!(code, Some(1));
    assert!(stdout.contains("MUL082"), "{stdout}");
}

#[test]
fn patches_of_a_kustomization_are_parts_of_objects() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    fs::create_dir_all(at("overlay/patches")).expect("a directory");
    let part = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {replica: 3}\n";
    for name in ["overlay/patches/a.yaml", "overlay/b.yaml", "overlay/c.yaml"] {
        fs::write(at(name), part).expect("a file");
    }
    let kustomization =
        "resources: [c.yaml]\npatches: [{path: patches/a.yaml}]\npatchesStrategicMerge: [b.yaml]\n";
    fs::write(at("overlay/kustomization.yaml"), kustomization).expect("a file");
    let told = |name: &str| check(&["-o", "json", &at(name).display().to_string()], "").1;
    let refused = |text: &str| text.matches("MUL083").count();
    // A field that there is not is none in a patch either.
    for name in ["overlay/patches", "overlay/b.yaml"] {
        let said = told(name);
        assert!(
            said.contains("MUL080") && refused(&said) == 0,
            "{name}: {said}"
        );
    }
    assert!(refused(&told("overlay/c.yaml")) > 0);
    let said = told("overlay");
    assert_eq!(refused(&said), refused(&told("overlay/c.yaml")), "{said}");
}

#[test]
fn unknown_fields_and_kinds_are_said_and_kinds_of_others_remarked_once() {
    let text = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  replica: 3\n---\n\
                apiVersion: apps/v1\nkind: Deploymnet\nmetadata: {name: web}\n---\n\
                apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: one}\n---\n\
                apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: two}\n";
    let note = "note:  nothing of Widget (example.com/v1) is checked: the kind is not known, unless its CustomResourceDefinition is checked with it\n";
    let (code, stdout, stderr) = check(&["--ignore", "MUL083", "-"], text);
    assert_eq!((code, &*stderr), (Some(1), note));
    let expected = "deployment/web  stdin\n    5  error  MUL080  unknown field \"spec.replica\"\n              help    the nearest field is replicas\n\n\
                    deploymnet/web  stdin\n    8  error  MUL081  no matches for kind \"Deploymnet\" in version \"apps/v1\"\n              \
                    help    the nearest kind is Deployment\n\n2 errors in 4 objects.\n";
    assert_eq!(stdout, expected);
    let (_, json, _) = check(&["--ignore", "MUL083", "-o", "json", "-"], text);
    let answer: Value = serde_json::from_str(&json).expect("JSON");
    let unknown = &answer["unknownKinds"];
    assert_eq!(unknown.as_array().map(Vec::len), Some(1), "{unknown}");
    assert_eq!(
        (&unknown[0]["kind"], &unknown[0]["objects"]),
        (&json!("Widget"), &json!(2))
    );
    // A kind that is not known is no failure.
    let (_, widgets) = text
        .split_once("Deploymnet\nmetadata: {name: web}\n---\n")
        .expect("both");
    let (code, _, stderr) = check(&["-"], widgets);
    assert_eq!((code, &*stderr), (Some(0), note));
}

#[test]
fn programs_read_json_sarif_and_commands_of_github() {
    let text = "---\n# Source: shop/templates/pod.yaml\n".to_owned() + POD;
    let (_, json, _) = check(&["-o", "json", "--select", "MUL001", "-"], &text);
    let answer: Value = serde_json::from_str(&json).expect("JSON");
    let finding = &answer["findings"][0];
    assert_eq!(
        (finding["id"].as_str(), finding["line"].as_u64()),
        (Some("MUL001"), Some(8))
    );
    assert_eq!(finding["source"], "shop/templates/pod.yaml");
    let (_, sarif, _) = check(&["-o", "sarif", "--select", "MUL001", "-"], &text);
    let log: Value = serde_json::from_str(&sarif).expect("JSON");
    let run = &log["runs"][0];
    let result = &run["results"][0];
    assert_eq!(
        result["ruleId"],
        run["tool"]["driver"]["rules"][result["ruleIndex"].as_u64().expect("a number") as usize]["id"]
    );
    let place = &result["locations"][0]["physicalLocation"];
    assert_eq!(place["artifactLocation"]["uri"], "shop/templates/pod.yaml");
    let (_, lines, _) = check(&["-o", "github", "--select", "MUL001", "-"], &text);
    assert!(
        lines.starts_with(
            "::error file=shop/templates/pod.yaml,line=8,col=1,title=MUL001::pod/shop: "
        ),
        "{lines}"
    );
}

#[test]
fn the_mistakes_of_the_examples_are_found() {
    let (code, json, _) = check(&["-o", "json", &examples()], "");
    assert_eq!(code, Some(1));
    let answer: Value = serde_json::from_str(&json).expect("JSON");
    let findings = answer["findings"].as_array().expect("a list");
    let has = |object: &str, file: &str, id: &str| {
        findings.iter().any(|own| {
            let path = Path::new(own["file"].as_str().unwrap_or_default());
            own["object"] == object && own["id"] == id && path.ends_with(file)
        })
    };
    for (object, file, id) in [
        (
            "clusterconfig/windows-karpenter-demo",
            "eksctl-cluster.yaml",
            "MUL071",
        ),
        (
            "runtimeclass/windows-2022",
            "runtimeclass-2022-v1beta1.yaml",
            "MUL030",
        ),
        (
            "runtimeclass/windows-2022",
            "runtimeclass-2022-v1beta1.yaml",
            "MUL031",
        ),
        ("deployment/win-webserver", "win-webserver.yaml", "MUL021"),
        ("deployment/win-webserver", "win-webserver.yaml", "MUL050"),
    ] {
        assert!(has(object, file, id), "{object} {id}\n{json}");
    }
    let files = [
        "eksctl-cluster.yaml",
        "runtimeclass-2022-v1beta1.yaml",
        "win-webserver.yaml",
    ];
    let files = files.map(|name| format!("{}/{name}", examples()));
    let (_, stdout, _) = check(&[&files[0], &files[1], &files[2]], "");
    insta::assert_snapshot!(stdout.replace(&examples(), "examples"));
}

#[test]
fn extracts_of_linux_charts_are_silent_until_the_cluster_has_windows() {
    let charts = format!("{}/tests/check/charts", env!("CARGO_MANIFEST_DIR"));
    let (code, stdout, stderr) = check(&[WITHOUT_VALUES, &[&*charts]].concat(), "");
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    assert!(stdout.contains("no findings"), "{stdout}");
    let pools = format!("{}/tests/check/pools.yaml", env!("CARGO_MANIFEST_DIR"));
    let (code, stdout, _) = check(
        &[WITHOUT_VALUES, &["--pools", &*pools, &*charts]].concat(),
        "",
    );
    assert_eq!(code, Some(1), "{stdout}");
    let shown = stdout.replace(&charts, "charts");
    insta::assert_snapshot!(shown);
}

#[test]
fn thirty_well_known_charts_for_linux_have_no_finding_until_the_cluster_has_windows() {
    let charts = format!("{}/tests/check/known-charts", env!("CARGO_MANIFEST_DIR"));
    let renders = fs::read_dir(&charts).expect("a directory");
    let is_render = |name: &std::ffi::OsString| name.to_string_lossy().ends_with(".yaml");
    let renders = renders.map(|entry| entry.expect("an entry").file_name());
    assert_eq!(renders.filter(is_render).count(), 30);
    let (code, stdout, stderr) = check(&[WITHOUT_VALUES, &[&*charts]].concat(), "");
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    assert!(stdout.ends_with(" objects, no findings.\n"), "{stdout}");
    let pools = format!("{}/tests/check/pools.yaml", env!("CARGO_MANIFEST_DIR"));
    let args = ["-o", "json", "--pools", &*pools, &*charts];
    let (_, json, _) = check(&[WITHOUT_VALUES, &args].concat(), "");
    let answer: Value = serde_json::from_str(&json).expect("JSON");
    let findings = answer["findings"].as_array().expect("a list").iter();
    let lines = findings.map(|own| {
        let [id, severity, object] = ["id", "severity", "object"].map(|field| &own[field]);
        format!("{id} {severity} {object}\n").replace('"', "")
    });
    insta::assert_snapshot!(lines.collect::<String>());
}

/// A Deployment without pods whose image needs another build than it selects, and whose pods name a GMSACredentialSpec.
fn on_a_wrong_build(image: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {
                    "nodeSelector": {"kubernetes.io/os": "windows", "node.kubernetes.io/windows-build": "10.0.17763"},
                    "securityContext": {"windowsOptions": {"gmsaCredentialSpecName": "shop"}},
                    "containers": [{"name": "web", "image": image}],
                },
            },
        },
    })
}

const OTHER_BUILD: &str = "needs build 10.0.20348, and the pod selects 10.0.17763";

#[test]
fn registries_are_asked_what_images_run_on() {
    let ask = |host: &str| {
        let manifest = on_a_wrong_build(&format!("{host}/shop/win:1")).to_string();
        mullion_with(
            &["check", "--images", "auto", "--select", "MUL020", "-"],
            &manifest,
        )
    };
    for registry in registry::at_hand(false) {
        registry.push_shop();
        let ended = ask(&registry.host);
        assert_eq!(ended.code, Some(1), "{}{}", ended.stdout, ended.stderr);
        let said = ended.stdout;
        assert!(
            said.contains(OTHER_BUILD) && !said.contains("by its name"),
            "{said}"
        );
    }
    // What nobody knows is no finding.
    let ended = ask(&registry::down());
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
}

#[test]
fn a_cluster_is_asked_for_its_objects_and_what_its_service_accounts_may_do() {
    let cluster = Cluster::start(&["--speed", "max"]);
    let registry = &registry::at_hand(false)[0];
    registry.push_shop();
    cluster.apply(&on_a_wrong_build(&format!("{}/shop/win:1", registry.host)).to_string());
    let ask = || {
        let ids = "MUL020,MUL048";
        let args = [
            "check",
            "--live",
            "--kubeconfig",
            "kubeconfig",
            "--select",
            ids,
        ];
        text(&cluster.mullion(&args).stdout)
    };
    let said = ask();
    assert!(
        said.contains("deployment/default/web") && said.contains(OTHER_BUILD),
        "{said}"
    );
    assert!(
        said.contains("there is no GMSACredentialSpec shop"),
        "{said}"
    );
    let credential = json!({"apiVersion": "windows.k8s.io/v1", "kind": "GMSACredentialSpec", "metadata": {"name": "shop"}, "credspec": {"CmsPlugins": []}});
    cluster.apply(&credential.to_string());
    let said = ask();
    assert!(
        said.contains(
            "service account default/default may not use GMSACredentialSpec shop (verb use)"
        ),
        "{said}"
    );
    // kubectl's `create role` does not know the verb.
    let rule = json!({
        "apiGroups": ["windows.k8s.io"], "resources": ["gmsacredentialspecs"], "verbs": ["use"], "resourceNames": ["shop"],
    });
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "shop", "namespace": "default"}, "rules": [rule],
    });
    cluster.apply(&role.to_string());
    cluster.kubectl(&[
        "create",
        "rolebinding",
        "shop",
        "--role=shop",
        "--serviceaccount=default:default",
    ]);
    let said = ask();
    assert!(
        said.contains(OTHER_BUILD) && !said.contains("MUL048"),
        "{said}"
    );
}

#[test]
fn a_cluster_that_places_pods_by_their_images_and_gives_them_addresses_has_no_finding_about_that() {
    let cluster = Cluster::start(&["--speed", "max"]);
    let deployment = |name: &str, labels: Value| {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "selector": {"matchLabels": {"app": name}},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [{"name": "c", "image": "mcr.microsoft.com/windows/nanoserver:ltsc2022"}]},
                },
            },
        })
    };
    let terms = json!([{"matchExpressions": [{"key": "kubernetes.io/os", "operator": "In", "values": ["windows"]}]}]);
    let required =
        json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "by-affinity", "namespace": "default"},
        "spec": {
            "affinity": {"nodeAffinity": required}, "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "c", "image": "registry.example.com/shop:1"}],
        },
    });
    let off = json!({"app": "off", "mullion.dev/place-by-image": "false"});
    let all = [
        deployment("placed", json!({"app": "placed"})),
        deployment("off", off),
        pod,
    ];
    cluster.apply(&json!({"apiVersion": "v1", "kind": "List", "items": all}).to_string());
    let address = [
        "get",
        "pod",
        "by-affinity",
        "-o",
        r"jsonpath={.metadata.annotations.vpc\.amazonaws\.com/PrivateIPv4Address}",
    ];
    cluster.until("the pod has an address", &address, |text| !text.is_empty());
    let args = "check --live --kubeconfig kubeconfig --images table --select MUL001,MUL010,MUL057";
    let args: Vec<_> = args.split(' ').collect();
    let said = text(&cluster.mullion(&args).stdout);
    assert!(said.contains("deployment/default/off"), "{said}");
    assert!(said.contains("1 error in "), "{said}");
}

#[test]
fn a_rule_is_explained() {
    let (code, stdout, _) = check(&["--explain", "mul010"], "");
    assert_eq!(code, Some(0));
    insta::assert_snapshot!(stdout);
    let (code, ..) = check(&["--explain", "MUL999"], "");
    assert_eq!(code, Some(2));
}

#[test]
fn every_value_of_a_wrong_type_is_named_with_its_line_and_hides_no_unknown_field() {
    let text = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  replicas: \"3\"\n  template:\n    spec:\n      containers:\n      \
                - name: 7\n        imag: nginx\n---\n\
                apiVersion: eksctl.io/v1alpha5\nkind: ClusterConfig\nmetadata:\n  name: shop\n  region: us-west-2\n  version: 1.30\nnodeGroup: []\n---\n\
                kind: Service\nmetadata: {name: web}\n";
    let (code, stdout, stderr) = check(&["--ignore", "MUL083", "-"], text);
    assert_eq!((code, &*stderr), (Some(1), ""));
    let expected = "deployment/web  stdin\n    \
        5  error  MUL080  Deployment in version \"apps/v1\" cannot be handled as a Deployment: json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32\n              \
        help    the field takes a whole number and is the text \"3\"\n    \
        9  error  MUL080  Deployment in version \"apps/v1\" cannot be handled as a Deployment: json: cannot unmarshal number into Go struct field Container.spec.template.spec.containers.name of type string\n              \
        help    the field takes a text: put the value into quotes\n   \
        10  error  MUL080  unknown field \"spec.template.spec.containers[0].imag\"\n              \
        help    the nearest field is image\n\n\
        clusterconfig/shop  stdin\n   \
        17  error  MUL080  metadata.version is 1.3 and takes a text: eksctl refuses the file\n              \
        help    the field takes a text: put the value into quotes\n   \
        18  error  MUL080  unknown field \"nodeGroup\"\n              \
        help    the nearest field is nodeGroups\n\n\
        service/web  stdin\n   \
        20  error  MUL082  the object has no apiVersion: kubectl apply refuses it, and its fields are not checked\n              \
        help    apiVersion: v1\n\n\
        6 errors in 3 objects.\n";
    assert_eq!(stdout, expected);
}

#[test]
fn patches_in_a_sibling_directory_are_judged_by_their_fields_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        fs::write(path, text).expect("a file");
    };
    let deployment = |spec: &str| {
        format!("apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web}}\nspec: {spec}\n")
    };
    let windows = "{template: {spec: {containers: [{name: web, image: 'mcr.microsoft.com/windows/nanoserver:ltsc2022'}]}}}";
    write("patches/image.yaml", &deployment(windows));
    write("patches/typo.yaml", &deployment("{replica: 3}"));
    write("component/patches/more.yaml", &deployment("{paused: true}"));
    write(
        "overlay/kustomization.yaml",
        "patches: [{path: ../patches/image.yaml}, {path: ../patches/typo.yaml}]\ncomponents: [../component]\n",
    );
    write(
        "component/kustomization.yaml",
        "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\npatches: [{path: patches/more.yaml}]\n",
    );
    let path = directory.path().to_str().expect("a path");
    let (code, stdout, stderr) = check(&["-o", "json", path], "");
    assert_eq!(code, Some(1), "{stdout}{stderr}");
    let answer: Value = serde_json::from_str(&stdout).expect("JSON");
    let rules: Vec<_> = answer["findings"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|finding| finding["id"].as_str().expect("a rule"))
        .collect();
    assert_eq!(rules, ["MUL080"], "{stdout}");
    let note = "3 files are patches of a kustomization";
    assert_eq!(stderr.matches(note).count(), 1, "{stderr}");
}

#[test]
fn a_whole_number_with_a_fraction_of_zero_is_a_whole_number_as_kubectl_sends_it() {
    let deployment = |replicas: &str| {
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web}}\nspec:\n  replicas: {replicas}\n  selector: {{matchLabels: {{a: b}}}}\n  template: {{metadata: {{labels: {{a: b}}}}, spec: {{containers: [{{name: web, image: 'nginx:1.27'}}]}}}}\n"
        )
    };
    let (code, stdout, _) = check(&["-"], &deployment("3.0"));
    assert_eq!(code, Some(0), "{stdout}");
    let (code, stdout, _) = check(&["-"], &deployment("3.5"));
    assert_eq!(code, Some(1), "{stdout}");
    assert!(stdout.contains("MUL080"), "{stdout}");
}

#[test]
fn all_that_eksctl_refuses_and_that_v1_of_karpenter_has_elsewhere_is_told_with_its_line() {
    let config = "apiVersion: eksctl.io/v1alpha5
kind: ClusterConfig
metadata: {name: demo, region: us-west-2, version: '1.34'}
managedNodeGroups:
- name: linux
  amiFamily: AmazonLinux2
  volumeType: gp2
  volumeThroughput: 200
  updateConfig:
    maxUnavailable: 1
    maxUnavailablePercentage: 10
---
apiVersion: karpenter.sh/v1beta1
kind: NodePool
metadata: {name: pool}
spec:
  disruption:
    consolidationPolicy: WhenUnderutilized
    expireAfter: 720h
  limits: {cpu: 10}
  template:
    spec:
      kubelet: {maxPods: 20}
      nodeClassRef: {apiVersion: karpenter.k8s.aws/v1beta1, kind: EC2NodeClass, name: win}
      requirements: []
";
    let (code, stdout, _) = check(&["--select", "MUL085,MUL077", "-o", "json", "-"], config);
    assert_eq!(code, Some(1), "{stdout}");
    let answer: Value = serde_json::from_str(&stdout).expect("JSON");
    let findings = answer["findings"].as_array().expect("a list");
    let lines: Vec<_> = findings
        .iter()
        .map(|finding| {
            (
                finding["id"].as_str().expect("a rule"),
                finding["line"].as_u64().expect("a line"),
            )
        })
        .collect();
    assert_eq!(
        lines,
        [
            ("MUL085", 6),
            ("MUL085", 8),
            ("MUL085", 9),
            ("MUL077", 13),
            ("MUL077", 17),
            ("MUL077", 18),
            ("MUL077", 19),
            ("MUL077", 23),
            ("MUL077", 24),
            ("MUL077", 24),
        ],
        "{stdout}"
    );
}

#[test]
fn a_warning_of_the_api_server_is_told_once_where_the_value_stands() {
    let pod = LINUX.replace(
        "'nginx:1.27'",
        "'nginx:1.27', resources: {limits: {memory: 512m}}",
    );
    let (code, stdout, _) = check(&["-"], &pod);
    assert_eq!(code, Some(1), "{stdout}");
    assert!(stdout.contains("    4  warn   MUL084  the API server warns: spec.containers[0].resources.limits[memory]: fractional byte value"), "{stdout}");
    assert_eq!(stdout.matches("MUL084").count(), 1, "{stdout}");
}
