//! Tests images that do not exist, or not for this node.

use mullion_engine::images::{ImageRef, ImageRow, ImageTable, Published};

use super::*;
use crate::kubelet::images::{Contents, Variant};

#[test]
fn a_windows_image_of_another_build_ends_in_image_pull_back_off() {
    let mut scene = Scene::windows(Build::SERVER_2019);
    let image = "mcr.microsoft.com/windows/servercore:ltsc2022";
    let wake = scene.observe(&one(image));
    let error = format!(
        "rpc error: code = NotFound desc = failed to pull and unpack image \"{image}\": no match for platform in manifest: not found"
    );
    let attempt = |at: i64| {
        vec![
            format!("{at}s Normal Pulling: Pulling image \"{image}\""),
            format!("{at}s Warning Failed: Failed to pull image \"{image}\": {error}"),
            format!("{at}s Warning Failed: Error: ErrImagePull"),
            format!("{at}s Normal BackOff: Back-off pulling image \"{image}\""),
            format!("{at}s Warning Failed: Error: ImagePullBackOff"),
        ]
    };
    let mut expected = attempt(0);
    expected.push(
        "0s status Pending 10.0.1.100 web=ImagePullBackOff annotated 10.0.1.100/19".to_owned(),
    );
    expected.extend(attempt(10));
    expected.extend(attempt(30));
    scene.run(wake, 40);
    assert_eq!(scene.lines, expected, "\n{}\n", scene.lines.join("\n"));
}

#[test]
fn a_failed_pull_shows_its_error_first_and_then_the_back_off() {
    let mut scene = Scene::linux(Pace::REAL);
    let wake = scene.observe(&one("mcr.microsoft.com/windows/nanoserver:ltsc2022"));
    scene.run(wake, 5);
    let statuses: Vec<_> = scene
        .lines
        .iter()
        .filter(|line| line.contains("status"))
        .cloned()
        .collect();
    assert_eq!(
        statuses,
        [
            "0s status Pending web=ContainerCreating",
            "0.8s status Pending 10.0.1.100 web=ContainerCreating",
            "1.15s status Pending 10.0.1.100 web=ErrImagePull",
            "2.15s status Pending 10.0.1.100 web=ImagePullBackOff",
        ]
    );
}

#[test]
fn a_pod_whose_image_is_corrected_starts_without_waiting_for_the_back_off() {
    let mut scene = Scene::windows(Build::SERVER_2022);
    scene.observe(&one("nginx"));
    scene.lines.clear();
    scene.observe(&one("mcr.microsoft.com/windows/servercore:ltsc2022"));
    scene.expect(&[
        &format!("0s Normal Pulled: Container image \"mcr.microsoft.com/windows/servercore:ltsc2022\" {PRESENT}"),
        "0s Normal Created: Container created",
        "0s Normal Started: Container started",
        "0s status Running 10.0.1.100 web=Running+",
    ]);
}

#[test]
fn images_that_cannot_be_had_are_reported_as_the_kubelet_reports_them() {
    let mut never = one("app:1");
    never["spec"]["containers"][0]["imagePullPolicy"] = json!("Never");
    let mut scene = Scene::linux(Pace::INSTANT);
    scene.observe(&never);
    scene.expect(&[
        "0s Warning ErrImageNeverPull: Container image \"app:1\" is not present with pull policy of Never",
        "0s Warning Failed: Error: ErrImageNeverPull",
        "0s status Pending 10.0.1.100 web=ErrImageNeverPull",
    ]);
    let mut scene = Scene::linux(Pace::INSTANT);
    scene.observe(&one("Nginx"));
    scene.expect(&[
        "0s Warning InspectFailed: Failed to apply default image tag \"Nginx\": couldn't parse image name \"Nginx\": \
         invalid reference format: repository name (library/Nginx) must be lowercase",
        "0s Warning Failed: Error: InvalidImageName",
        "0s status Pending 10.0.1.100 web=InvalidImageName",
    ]);
}

#[test]
fn an_image_that_may_not_be_pulled_is_found_when_another_pod_has_brought_it() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let mut never = one("app:1");
    never["spec"]["containers"][0]["imagePullPolicy"] = json!("Never");
    let wake = scene.observe(&never);
    let mut other = one("app:1");
    other["metadata"]["uid"] = json!("uid-2");
    let other: Pod = serde_json::from_value(other).expect("a pod");
    scene.host.observe_pod(Arc::new(other), scene.now);
    scene.lines.clear();
    scene.run(wake, 15);
    let last = scene.lines.last().map(String::as_str);
    assert_eq!(last, Some("10s status Running 10.0.1.100 web=Running+"));
}

#[test]
fn a_pull_that_is_tried_again_goes_on_being_reported_as_a_back_off() {
    let mut scene = Scene::linux(Pace::REAL);
    let wake = scene.observe(&one("mcr.microsoft.com/windows/nanoserver:ltsc2022"));
    let wake = scene.run(wake, 5);
    scene.lines.clear();
    scene.run(wake, 13);
    let statuses: Vec<_> = scene
        .lines
        .iter()
        .filter_map(|line| Some(line.split_once("status ")?.1))
        .collect();
    assert_eq!(
        statuses,
        [
            "Pending 10.0.1.100 web=ErrImagePull",
            "Pending 10.0.1.100 web=ImagePullBackOff"
        ]
    );
}

#[test]
fn a_pull_that_the_pod_asks_to_fail_fails_in_containerds_words_until_it_asks_no_more() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let image = "nginx:doesnotexist";
    let wake = scene.observe(&annotated(one(image), "mullion.dev/simulate-pull", "fail"));
    let name = format!("docker.io/library/{image}");
    scene.expect(&[
        &format!("0s Normal Pulling: Pulling image \"{image}\""),
        &format!(
            "0s Warning Failed: Failed to pull image \"{image}\": rpc error: code = NotFound desc = failed to pull and unpack \
             image \"{name}\": failed to resolve reference \"{name}\": {name}: not found"
        ),
        "0s Warning Failed: Error: ErrImagePull",
        &format!("0s Normal BackOff: Back-off pulling image \"{image}\""),
        "0s Warning Failed: Error: ImagePullBackOff",
        "0s status Pending 10.0.1.100 web=ImagePullBackOff",
    ]);
    assert_eq!(scene.host.images().count(scene.now), 0);
    let wake = scene.run(wake, 5);
    scene.observe(&one(image));
    scene.run(wake, 15);
    let last = scene.lines.last().map(String::as_str);
    assert_eq!(last, Some("10s status Running 10.0.1.100 web=Running+"));
}

#[test]
fn a_pull_fails_for_one_container_and_even_if_its_node_has_the_image() {
    let two = pod(json!({ "containers": [
        { "name": "web", "image": "app:1" },
        { "name": "log", "image": "app:1" },
    ] }));
    let mut scene = Scene::linux(Pace::INSTANT);
    scene.observe(&annotated(two, "mullion.dev/simulate-pull.log", "fail"));
    let last = scene.lines.last().map(String::as_str);
    assert_eq!(
        last,
        Some("0s status Pending 10.0.1.100 log=ImagePullBackOff web=Running+")
    );
}

#[test]
fn a_running_pod_that_is_told_so_finds_its_image_gone_at_its_next_start() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let web = one("app:1");
    let wake = scene.observe(&web);
    let told = annotated(web, "mullion.dev/simulate-pull", "fail");
    assert_eq!(scene.observe(&told), wake, "what runs goes on");
    scene.lines.clear();
    let wake = scene.observe(&annotated(told, "mullion.dev/simulate-exit", "1"));
    scene.run(wake, 5);
    let last = scene.lines.last().map(String::as_str);
    assert_eq!(
        last,
        Some("0s status Running 10.0.1.100 web=ImagePullBackOff")
    );
}

/// A registry whose Windows images have no `os.version`, like those that buildx builds.
#[derive(Debug)]
struct WithoutVersion;

impl Contents for WithoutVersion {
    fn variants(&self, _: &ImageRef) -> Option<Vec<Variant>> {
        let platforms = ["linux/amd64", "windows/amd64"];
        let variant = |platform: &str| Variant {
            platform: platform.parse().expect("a platform"),
            os_version: String::new(),
            bytes: Some(1_000),
        };
        Some(platforms.map(variant).into())
    }
}

#[test]
fn an_image_without_os_version_is_pulled_by_every_build_and_does_not_start_on_a_wrong_one() {
    let row = ImageRow {
        repository: "r.example.com/shop".into(),
        published: Published::Windows(Some(Build::SERVER_2019)),
        bytes: 1_000,
        base_bytes: 0,
    };
    let knowledge = || ImageSources {
        table: Arc::new(ImageTable::extended(vec![row.clone()], Default::default())),
        contents: Some(Arc::new(WithoutVersion)),
    };
    let said = |host: Build, image: &str, spec: Value| {
        let mut spec = spec;
        spec["containers"] = json!([{ "name": "web", "image": image }]);
        let mut scene = Scene::knowing(host, knowledge());
        let wake = scene.observe(&pod(spec));
        scene.run(wake, 5);
        scene.lines.join("\n")
    };
    let (by_file, by_tag) = ("r.example.com/shop:1", "r.example.com/app:1-ltsc2019");
    for image in [by_file, by_tag] {
        let wrong = said(Build::SERVER_2022, image, json!({}));
        let text =
            "The container operating system does not match the host operating system.: unknown";
        assert!(
            wrong.contains("Normal Pulled") && wrong.contains(text),
            "{wrong}"
        );
        assert!(
            wrong.contains("Warning Failed: Error: failed to create containerd task: failed to create shim task: hcs::CreateComputeSystem "),
            "{wrong}"
        );
        assert!(wrong.contains("web=RunContainerError"), "{wrong}");
        let right = said(Build::SERVER_2019, image, json!({}));
        assert!(right.contains("web=Running+"), "{right}");
    }
    // The build is unknown, so the image is assumed to run.
    let unknown = said(Build::SERVER_2022, "r.example.com/app:1", json!({}));
    assert!(unknown.contains("web=Running+"), "{unknown}");
    let options = json!({ "hostProcess": true, "runAsUserName": "NT AUTHORITY\\SYSTEM" });
    let host_process =
        json!({ "hostNetwork": true, "securityContext": { "windowsOptions": options } });
    let host_process = said(Build::SERVER_2022, by_file, host_process);
    assert!(host_process.contains("web=Running+"), "{host_process}");
}
