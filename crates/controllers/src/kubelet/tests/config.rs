//! Tests ConfigMaps and Secrets: the messages about missing ones, and that they are found once they exist.

use super::*;
use crate::kubelet::config::{Object, ObjectContents};

impl Scene {
    fn has(&mut self, object: Object, keys: &[&str]) {
        let keys = ObjectContents {
            values: keys.iter().map(|key| (*key).to_owned()).collect(),
            ..ObjectContents::default()
        };
        self.objects.insert(object, keys);
    }
}

fn map(name: &str) -> Object {
    Object::ConfigMap(name.to_owned())
}

fn secret(name: &str) -> Object {
    Object::Secret(name.to_owned())
}

/// Returns a pod of one container with this environment.
fn with_env(env: Value, env_from: Value) -> Value {
    pod(
        json!({ "containers": [{ "name": "web", "image": "app:1", "env": env, "envFrom": env_from }] }),
    )
}

fn with_volume(volume: Value) -> Value {
    let mut pod = one("app:1");
    pod["spec"]["volumes"] = json!([volume, { "name": "scratch", "emptyDir": {} }]);
    pod["spec"]["volumes"][0]["name"] = json!("v");
    pod
}

/// Returns reason and message of the waiting container after some time.
fn waits_with(scene: &mut Scene, pod: &Value) -> Option<(String, String)> {
    let parsed: Pod = serde_json::from_value(pod.clone()).expect("a pod");
    let mut steps = vec![scene.host.observe_pod(Arc::new(parsed), scene.now)];
    let mut last = None;
    while let Some(step) = steps.pop() {
        for effect in step.effects {
            match effect {
                Effect::Status { status, .. } => last = Some(status),
                Effect::Ask(question) => {
                    let mut found = scene.objects.clone();
                    found.retain(|object, _| question.objects.contains(object));
                    scene.host.answer("uid-1", question.purpose, found);
                    steps.push(scene.host.step("uid-1", scene.now));
                }
                Effect::Event(_) | Effect::Delete => {}
            }
        }
    }
    let web = last?.container_statuses?.into_iter().next()?;
    let waiting = web.state?.waiting?;
    Some((waiting.reason?, waiting.message.unwrap_or_default()))
}

#[test]
fn a_container_whose_configmap_is_missing_is_tried_every_ten_seconds_until_it_is_there() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let env_from = json!([{ "configMapRef": { "name": "nope" } }]);
    let wake = scene.observe(&with_env(json!([]), env_from));
    let pulled = format!("Normal Pulled: Container image \"app:1\" {PRESENT}");
    let wake = scene.run(wake, 15);
    let happened = std::mem::take(&mut scene.lines);
    assert_eq!(happened[0], "0s Normal Pulling: Pulling image \"app:1\"");
    assert!(happened[1].contains("Successfully pulled"), "{happened:?}");
    assert_eq!(
        happened[2..],
        [
            "0s status Pending 10.0.1.100 web=ContainerCreating".to_owned(),
            "0s Warning Failed: Error: configmap \"nope\" not found".to_owned(),
            "0s status Pending 10.0.1.100 web=CreateContainerConfigError".to_owned(),
            format!("10s {pulled}"),
            "10s Warning Failed: Error: configmap \"nope\" not found".to_owned(),
        ]
    );
    scene.has(map("nope"), &[]);
    assert_eq!(scene.run(wake, 60), None);
    scene.expect(&[
        &format!("20s {pulled}"),
        "20s Normal Created: Container created",
        "20s Normal Started: Container started",
        "20s status Running 10.0.1.100 web=Running+",
    ]);
}

#[test]
fn what_an_environment_lacks_is_named_in_the_kubelets_words() {
    let key = |of: &str, name: &str| json!([{ "name": "A", "valueFrom": { (format!("{of}KeyRef")): { "name": name, "key": "zz" } } }]);
    let nothing = || json!([]);
    let cases = [
        (
            with_env(key("configMap", "nope"), nothing()),
            "configmap \"nope\" not found",
        ),
        (
            with_env(key("secret", "x"), nothing()),
            "secret \"x\" not found",
        ),
        (
            with_env(key("configMap", "here"), nothing()),
            "couldn't find key zz in ConfigMap ns/here",
        ),
        (
            with_env(key("secret", "here"), nothing()),
            "couldn't find key zz in Secret ns/here",
        ),
        (
            with_env(
                key("secret", "x"),
                json!([{ "secretRef": { "name": "first" } }]),
            ),
            "secret \"first\" not found",
        ),
    ];
    for (pod, message) in cases {
        let mut scene = Scene::linux(Pace::INSTANT);
        scene.has(map("here"), &["a"]);
        scene.has(secret("here"), &["a"]);
        let expected = ("CreateContainerConfigError".to_owned(), message.to_owned());
        assert_eq!(waits_with(&mut scene, &pod), Some(expected));
    }
}

#[test]
fn what_is_optional_or_there_does_not_stand_in_the_way() {
    let key = |of: &str, name: &str, key: &str, optional: bool| {
        let source = json!({ "name": name, "key": key, "optional": optional });
        json!({ "name": "A", "valueFrom": { (format!("{of}KeyRef")): source } })
    };
    let env = json!([
        key("configMap", "nope", "a", true),
        key("configMap", "here", "zz", true),
        key("secret", "nope", "a", true),
        key("secret", "here", "a", false),
        { "name": "B", "value": "plain" },
    ]);
    let env_from = json!([
        { "configMapRef": { "name": "nope", "optional": true } },
        { "secretRef": { "name": "here" } },
    ]);
    let mut pod = with_env(env, env_from);
    pod["spec"]["volumes"] = json!([
        { "name": "a", "configMap": { "name": "nope", "optional": true } },
        { "name": "b", "secret": { "secretName": "here", "items": [{ "key": "zz", "path": "p" }], "optional": true } },
        { "name": "c", "projected": { "sources": [{ "secret": { "name": "here", "items": [{ "key": "a", "path": "p" }] } }] } },
    ]);
    let mut scene = Scene::linux(Pace::INSTANT);
    scene.has(map("here"), &["a"]);
    scene.has(secret("here"), &["a"]);
    assert_eq!(scene.observe(&pod), None);
    let last = scene.lines.last().map(String::as_str);
    assert_eq!(last, Some("0s status Running 10.0.1.100 web=Running+"));
    let warnings = scene.lines.iter().filter(|line| line.contains("Warning"));
    assert_eq!(warnings.count(), 0);
}

#[test]
fn a_volume_of_a_missing_secret_holds_its_pod_back_and_is_tried_ever_less_often() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let wake = scene.observe(&with_volume(
        json!({ "secret": { "secretName": "missing" } }),
    ));
    let wake = scene.run(wake, 250);
    let failure = "Warning FailedMount: MountVolume.SetUp failed for volume \"v\" : secret \"missing\" not found";
    let mut expected = vec!["0s status Pending web=ContainerCreating".to_owned()];
    let tries = ["0", "0.5", "1.5", "3.5", "7.5", "15.5", "31.5", "63.5"];
    expected.extend(tries.map(|at| format!("{at}s {failure}")));
    expected.push(
        "123s Warning FailedMount: Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], \
         failed to process volumes=[]: context deadline exceeded"
            .to_owned(),
    );
    expected.push(format!("127.5s {failure}"));
    expected.push(format!("249.5s {failure}"));
    assert_eq!(scene.lines, expected, "\n{}\n", scene.lines.join("\n"));
    scene.lines.clear();
    scene.has(secret("missing"), &["a"]);
    assert_eq!(scene.run(wake, 400), None);
    let statuses: Vec<_> = scene
        .lines
        .iter()
        .filter(|line| line.contains("status"))
        .collect();
    assert_eq!(statuses, ["371.5s status Running 10.0.1.100 web=Running+"]);
}

#[test]
fn what_a_volume_lacks_is_named_in_the_kubelets_words() {
    let items = json!([{ "key": "zz", "path": "p" }]);
    let cases = [
        (
            json!({ "configMap": { "name": "nope" } }),
            "configmap \"nope\" not found",
        ),
        (
            json!({ "configMap": { "name": "here", "items": items } }),
            "references non-existent config key: zz",
        ),
        (
            json!({ "secret": { "secretName": "here", "items": items } }),
            "references non-existent secret key: zz",
        ),
        (
            json!({ "projected": { "sources": [{ "secret": { "name": "x" } }] } }),
            "secret \"x\" not found",
        ),
        (
            json!({ "projected": { "sources": [
                { "secret": { "name": "x" } },
                { "configMap": { "name": "y" } },
                { "secret": { "name": "x" } },
                { "configMap": { "name": "nope", "optional": true } },
            ] } }),
            "[secret \"x\" not found, configmap \"y\" not found]",
        ),
    ];
    for (volume, message) in cases {
        let mut scene = Scene::linux(Pace::INSTANT);
        scene.has(map("here"), &["a"]);
        scene.has(secret("here"), &["a"]);
        scene.observe(&with_volume(volume));
        let failure = format!(
            "0s Warning FailedMount: MountVolume.SetUp failed for volume \"v\" : {message}"
        );
        assert_eq!(scene.lines[1..], [failure]);
    }
}

#[test]
fn a_volume_shows_binary_keys_and_an_environment_does_not_have_them() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let keys = ObjectContents {
        binary: ["logo".to_owned()].into(),
        ..ObjectContents::default()
    };
    scene.objects.insert(map("pictures"), keys);
    let items = json!([{ "key": "logo", "path": "logo.png" }]);
    let mut pod = with_volume(json!({ "configMap": { "name": "pictures", "items": items } }));
    pod["spec"]["containers"][0]["env"] = json!([
        { "name": "LOGO", "valueFrom": { "configMapKeyRef": { "name": "pictures", "key": "logo" } } },
    ]);
    let message = "couldn't find key logo in ConfigMap ns/pictures";
    let expected = ("CreateContainerConfigError".to_owned(), message.to_owned());
    assert_eq!(waits_with(&mut scene, &pod), Some(expected));
}

#[test]
fn a_pod_that_waits_for_a_volume_can_be_deleted() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let waiting = with_volume(json!({ "secret": { "secretName": "missing" } }));
    scene.observe(&waiting);
    scene.lines.clear();
    assert_eq!(scene.observe(&deleted(waiting, 0, 30)), None);
    scene.expect(&[
        "0s status Failed web=ContainerStatusUnknown(137)",
        "0s delete",
    ]);
}

#[test]
fn a_pod_that_refers_to_nothing_asks_for_nothing() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let mut plain = with_env(json!([{ "name": "A", "value": "b" }]), Value::Null);
    plain["spec"]["volumes"] = json!([
        { "name": "scratch", "emptyDir": {} },
        { "name": "token", "projected": { "sources": [{ "serviceAccountToken": { "path": "token" } }] } },
    ]);
    let plain: Pod = serde_json::from_value(plain).expect("a pod");
    let step = scene.host.observe_pod(Arc::new(plain), scene.now);
    assert!(
        !step
            .effects
            .iter()
            .any(|effect| matches!(effect, Effect::Ask(_)))
    );
    assert_eq!(step.wake, None);
}
