//! Images that cannot be had, or not here.

use super::*;

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
