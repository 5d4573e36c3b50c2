//! Classes that are tried before anything is bought from them.

use std::sync::Arc;

use mullion_cloud::{
    BoxFuture, CloudError, DeniedCall, LaunchCall,
    remote::{Remote, Wire, WireError, answer},
    sim::SimulatedEc2,
};
use serde_json::json;

use crate::{
    pools::{self, Pool, change_class},
    whole::Whole,
};

/// Status, reason and message of the condition `ValidationSucceeded` of the class `linux`, and whether the class is ready.
fn validation(whole: &Whole) -> Option<(String, String, String, bool)> {
    let class = whole.karpenter.classes.get("", "linux")?;
    let conditions = &class.status.as_ref()?.conditions;
    let of = |kind: &str| conditions.iter().find(|own| own.type_ == kind);
    let own = of("ValidationSucceeded")?;
    let is_ready = of("Ready")?.status == "True";
    Some((
        own.status.clone(),
        own.reason.clone(),
        own.message.clone(),
        is_ready,
    ))
}

async fn until_reason(whole: &Whole, reason: &str) -> (String, String, bool) {
    whole
        .until(&format!("the class says {reason}"), || {
            let (status, own, message, is_ready) = validation(whole)?;
            (own == reason).then_some((status, message, is_ready))
        })
        .await
}

async fn linux(whole: &Whole) {
    pools::linux(whole, &["m5.large"], &["on-demand"], json!({})).await;
}

fn deny(ec2: &SimulatedEc2, actions: &[&str]) {
    let actions: Vec<_> = actions.iter().map(|own| (*own).to_owned()).collect();
    ec2.deny(&actions);
}

#[tokio::test(start_paused = true)]
async fn a_class_whose_launches_iam_does_not_allow_says_which_call() {
    for (call, reason) in [
        (
            LaunchCall::CreateLaunchTemplate,
            "CreateLaunchTemplateAuthCheckFailed",
        ),
        (LaunchCall::CreateFleet, "CreateFleetAuthCheckFailed"),
        (LaunchCall::RunInstances, "RunInstancesAuthCheckFailed"),
    ] {
        let whole = Whole::start().await;
        let action = call.action();
        deny(&whole.ec2, &[action]);
        linux(&whole).await;
        let said = until_reason(&whole, reason).await;
        let message = format!(
            "Controller isn't authorized to call {action}: User is not authorized to perform this operation because no \
             identity-based policy allows it"
        );
        assert_eq!(said, ("False".to_owned(), message, false));
        let line = whole.line(&format!("unauthorized to call {action}"));
        assert_eq!(line["EC2NodeClass"]["name"], "linux");
        let error = line["error"].as_str().expect("EC2's message");
        let perform = format!("not authorized to perform: {action} because");
        assert!(
            error.starts_with("UnauthorizedOperation: ") && error.contains(&perform),
            "{error}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_trial_has_found_counts_for_half_an_hour_unless_the_class_changes() {
    let whole = Whole::start().await;
    deny(&whole.ec2, &["ec2:RunInstances"]);
    linux(&whole).await;
    until_reason(&whole, "RunInstancesAuthCheckFailed").await;
    let began = whole.context.clock.now();
    deny(&whole.ec2, &[]);
    until_reason(&whole, "ValidationSucceeded").await;
    let waited = whole.context.clock.now().duration_since(began).as_secs();
    assert!((28 * 60..=31 * 60).contains(&waited), "{waited} s");
    // It is believed for as long that the class is fine.
    deny(&whole.ec2, &["ec2:CreateFleet"]);
    whole.pass(25 * 60).await;
    assert_eq!(validation(&whole).expect("it is set").0, "True");
    change_class(&whole, json!({ "tags": { "team": "web" } })).await;
    whole.pass(5).await;
    let (_, reason, ..) = validation(&whole).expect("it is set");
    assert_eq!(reason, "CreateFleetAuthCheckFailed");
    deny(&whole.ec2, &[]);
    change_class(&whole, json!({ "tags": { "team": "api" } })).await;
    whole.pass(5).await;
    let (_, _, _, is_ready) = validation(&whole).expect("it is set");
    assert!(is_ready);
}

/// A wire to a cloud in which trials have always the same outcome.
#[derive(Debug)]
struct FixedTrials {
    ec2: SimulatedEc2,
    outcome: Result<Option<DeniedCall>, CloudError>,
}

impl Wire for FixedTrials {
    fn send(&self, call: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, WireError>> {
        Box::pin(async move {
            let answer = if call.starts_with(b"{\"Denied\":") {
                serde_json::to_vec(&self.outcome)
            } else {
                answer(&self.ec2, &call).await
            };
            Ok(answer?)
        })
    }
}

/// A cluster in which trials of classes fail, with the class `linux`.
async fn failing(error: CloudError) -> Whole {
    let whole = with_trials(Err(error)).await;
    linux(&whole).await;
    whole
}

/// A cluster in which trials of classes have this outcome.
async fn with_trials(outcome: Result<Option<DeniedCall>, CloudError>) -> Whole {
    let mut whole = Whole::start().await;
    let ec2 = whole.ec2.clone();
    let remote = Remote::connect(Arc::new(FixedTrials { ec2, outcome })).await;
    let remote = remote.expect("it answers");
    whole.restart_karpenter_on(Arc::new(remote)).await;
    whole
}

/// Makes the class `linux` with a root volume of this size.
async fn linux_on(whole: &Whole, size: &str) {
    let discovery = json!([{ "tags": { "karpenter.sh/discovery": "windows-karpenter-demo" } }]);
    let mut spec = root_volume(size);
    spec["role"] = json!("KarpenterNodeRole-windows-karpenter-demo");
    spec["amiSelectorTerms"] = json!([{ "alias": "al2023@latest" }]);
    spec["subnetSelectorTerms"] = discovery.clone();
    spec["securityGroupSelectorTerms"] = discovery;
    let class = json!({
        "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": { "name": "linux" }, "spec": spec
    });
    whole.create(class).await;
    let pool = Pool {
        name: "linux",
        team: "web",
        types: &["m5.large"],
        capacity: &["on-demand"],
    };
    pool.create(whole, json!({}), json!({})).await;
}

fn root_volume(size: &str) -> serde_json::Value {
    json!({ "blockDeviceMappings": [{ "deviceName": "/dev/xvda", "ebs": { "volumeSize": size } }] })
}

async fn web(whole: &Whole) {
    let spec = json!({
        "nodeSelector": { "team": "web" },
        "containers": [{ "name": "web", "image": "nginx", "resources": { "requests": { "cpu": "500m" } } }]
    });
    whole.deployment("web", 1, spec).await;
}

#[tokio::test(start_paused = true)]
async fn a_class_whose_volume_is_smaller_than_its_image_is_not_ready_until_it_is_enlarged() {
    let whole = Whole::start().await;
    linux_on(&whole, "10Gi").await;
    web(&whole).await;
    whole.pass(120).await;
    let (status, reason, _, is_ready) = validation(&whole).expect("it is set");
    assert_eq!(
        (status.as_str(), reason.as_str(), is_ready),
        ("Unknown", "AwaitingReconciliation", false)
    );
    let line = whole.line("Reconciler error");
    assert_eq!(line["EC2NodeClass"]["name"], "linux");
    let error = line["error"].as_str().expect("EC2's message");
    let start =
        "validating ec2:RunInstances authorization, InvalidBlockDeviceMapping: Volume of size 10GB";
    assert!(error.starts_with(start), "{error}");
    assert!(whole.claims().is_empty());
    change_class(&whole, root_volume("20Gi")).await;
    whole.until_running("web", 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_volume_is_smaller_than_its_image_says_that_its_launch_has_failed() {
    let whole = with_trials(Ok(None)).await;
    linux_on(&whole, "10Gi").await;
    web(&whole).await;
    let said = whole.until("the claim says why it is not launched", || {
        let claims = whole.claims();
        let status = claims.first()?.status.as_ref()?;
        let mut conditions = status.conditions.iter();
        let launched = conditions.find(|own| own.type_ == "Launched")?;
        let is_told = launched.reason == "LaunchFailed" && status.provider_id.is_empty();
        is_told.then(|| (launched.status.clone(), launched.message.clone()))
    });
    let expected = ("Unknown".to_owned(), "Instance launch failed".to_owned());
    assert_eq!(said.await, expected);
    let line = whole.line("Reconciler error");
    let error = line["error"].as_str().expect("EC2's message");
    let start =
        "launching nodeclaim, creating instance, InvalidBlockDeviceMapping: Volume of size 10GB";
    assert!(error.starts_with(start), "{error}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_bought_from_a_class_while_no_trial_of_it_was_answered() {
    let mut whole = failing(CloudError::Throttled).await;
    web(&whole).await;
    whole.pass(300).await;
    let (status, reason, _, is_ready) = validation(&whole).expect("it is set");
    assert_eq!(
        (status.as_str(), reason.as_str(), is_ready),
        ("Unknown", "AwaitingReconciliation", false)
    );
    assert!(whole.claims().is_empty());
    whole.restart_karpenter().await;
    whole.until_running("web", 1).await;
}

#[tokio::test(start_paused = true)]
async fn user_data_that_ec2_refuses_is_told_by_the_class() {
    let error = CloudError::Refused {
        code: "InvalidUserData.Malformed".to_owned(),
        message: "User data is limited to 16384 bytes".to_owned(),
    };
    let whole = failing(error).await;
    let (status, message, is_ready) = until_reason(&whole, "UserDataSizeLimitExceeded").await;
    assert_eq!((status.as_str(), is_ready), ("False", false));
    assert_eq!(
        message,
        "ec2:CreateLaunchTemplate rejected the rendered user data as too large: Rendered user data exceeds the EC2 user data \
         size limit"
    );
}

#[tokio::test(start_paused = true)]
async fn a_profile_that_ec2_does_not_know_yet_is_asked_for_again() {
    let error = CloudError::Refused {
        code: "InvalidParameterValue".to_owned(),
        message: "Value (mine) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name"
            .to_owned(),
    };
    let mut whole = failing(error).await;
    // A profile that was made for the role of the class is believed to come.
    whole.pass(60).await;
    assert_eq!(validation(&whole).expect("it is set").0, "Unknown");
    change_class(&whole, json!({ "role": null, "instanceProfile": "mine" })).await;
    let (_, message, _) = until_reason(&whole, "InstanceProfileNotFound").await;
    assert_eq!(message, "Instance profile \"mine\" not found");
    whole.restart_karpenter().await;
    until_reason(&whole, "ValidationSucceeded").await;
}
