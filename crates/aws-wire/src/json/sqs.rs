//! SQS: the queue of messages about instances. The messages have the form in which EventBridge puts them into a queue.

use std::time::Duration;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use md5::{Digest, Md5};
use mullion_cloud::{InstanceState, Message, MessageKind};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{admit, read, unknown};
use crate::{Endpoint, refusal::Refusal};

/// How long a received message is hidden from other receivers. The simulated queue has only this time, which Karpenter asks for.
const HIDDEN_SECONDS: i64 = 20;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct GetQueueUrl {
    queue_name: String,
    #[serde(rename = "QueueOwnerAWSAccountId")]
    _owner: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct ReceiveMessage {
    queue_url: String,
    max_number_of_messages: Option<i64>,
    visibility_timeout: Option<i64>,
    wait_time_seconds: Option<i64>,
    #[serde(rename = "AttributeNames")]
    _attributes: Option<Vec<String>>,
    #[serde(rename = "MessageSystemAttributeNames")]
    _system_attributes: Option<Vec<String>>,
    #[serde(rename = "MessageAttributeNames")]
    _message_attributes: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct DeleteMessage {
    queue_url: String,
    receipt_handle: String,
}

pub(super) async fn run_action(
    endpoint: &Endpoint,
    action: &str,
    body: &[u8],
) -> Result<Value, Refusal> {
    admit(endpoint, "sqs", action)?;
    match action {
        "GetQueueUrl" => queue_url(endpoint, &read(body)?),
        "ReceiveMessage" => receive(endpoint, read(body)?).await,
        "DeleteMessage" => delete(endpoint, &read(body)?).await,
        other => Err(unknown(&format!("sqs:{other}"))),
    }
}

fn queue_url(endpoint: &Endpoint, request: &GetQueueUrl) -> Result<Value, Refusal> {
    let name = endpoint.queue();
    if request.queue_name == name {
        let account = &endpoint.settings().account_id;
        let region = &endpoint.ec2().config().region;
        // Clients with AWS_ENDPOINT_URL send requests there, whatever the host of this URL.
        let url = format!("https://sqs.{region}.amazonaws.com/{account}/{name}");
        Ok(json!({ "QueueUrl": url }))
    } else {
        Err(no_queue())
    }
}

fn no_queue() -> Refusal {
    Refusal::new(
        "com.amazonaws.sqs#QueueDoesNotExist",
        "The specified queue does not exist.",
    )
}

fn check(endpoint: &Endpoint, url: &str) -> Result<(), Refusal> {
    let name = url.rsplit('/').next().unwrap_or_default();
    if name == endpoint.queue() {
        Ok(())
    } else {
        Err(no_queue())
    }
}

async fn receive(endpoint: &Endpoint, request: ReceiveMessage) -> Result<Value, Refusal> {
    check(endpoint, &request.queue_url)?;
    let invalid = |text: &str| Refusal::new("InvalidParameterValue", text);
    let most = request.max_number_of_messages.unwrap_or(1);
    if !(1..=10).contains(&most) {
        return Err(invalid(
            "MaxNumberOfMessages must be between 1 and 10, if provided.",
        ));
    }
    let wait = request.wait_time_seconds.unwrap_or_default();
    if !(0..=20).contains(&wait) {
        return Err(invalid(
            "WaitTimeSeconds must be between 0 and 20, if provided.",
        ));
    }
    if request
        .visibility_timeout
        .is_some_and(|own| own != HIDDEN_SECONDS)
    {
        return Err(invalid(
            "The simulated queue hides received messages for 20 seconds: VisibilityTimeout must be 20, if provided.",
        ));
    }
    let most = usize::try_from(most).unwrap_or(1);
    let wait = Duration::from_secs(wait.unsigned_abs());
    // With a wait of 0 messages that are in the queue are received all the same: `timeout` polls once before it looks at the time.
    let received = timeout(wait, endpoint.ec2().receive_at_most(most)).await;
    let received = match received {
        Ok(received) => received?,
        Err(_) => Vec::new(),
    };
    let all: Vec<_> = received.iter().map(|own| message(endpoint, own)).collect();
    // SQS leaves `Messages` out if there are none.
    Ok(if all.is_empty() {
        json!({})
    } else {
        json!({ "Messages": all })
    })
}

async fn delete(endpoint: &Endpoint, request: &DeleteMessage) -> Result<Value, Refusal> {
    check(endpoint, &request.queue_url)?;
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(&request.receipt_handle).ok();
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    let receipt = text.and_then(|text| text.strip_prefix("receipt ")?.parse().ok());
    let receipt = receipt.ok_or_else(|| {
        Refusal::new(
            "ReceiptHandleIsInvalid",
            format!(
                "The input receipt handle \"{}\" is not a valid receipt handle.",
                request.receipt_handle
            ),
        )
    })?;
    endpoint.ec2().delete_receipt(receipt);
    Ok(json!({}))
}

fn message(endpoint: &Endpoint, own: &Message) -> Value {
    let body = event(endpoint, own).to_string();
    let digest = Md5::digest(body.as_bytes());
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let receipt = format!("receipt {}", own.receipt);
    json!({
        "MessageId": format!("00000000-0000-4000-8000-{:012x}", own.receipt),
        "ReceiptHandle": BASE64_URL_SAFE_NO_PAD.encode(receipt),
        // SDKs verify this digest and fail if it is wrong.
        "MD5OfBody": digest,
        "Body": body,
        "Attributes": { "SentTimestamp": own.sent_at.as_millisecond().to_string() },
    })
}

/// Returns the event that EventBridge puts into the queue.
fn event(endpoint: &Endpoint, own: &Message) -> Value {
    let account = &endpoint.settings().account_id;
    let region = &endpoint.ec2().config().region;
    let id = own.instance.to_string();
    let arn = format!("arn:aws:ec2:{region}:{account}:instance/{id}");
    let (source, kind, detail) = match own.kind {
        MessageKind::SpotInterruption => (
            "aws.ec2",
            "EC2 Spot Instance Interruption Warning",
            json!({ "instance-id": id, "instance-action": "terminate" }),
        ),
        MessageKind::ReservationInterruption => (
            "aws.ec2",
            "EC2 Capacity Reservation Instance Interruption Warning",
            json!({ "instance-id": id, "instance-action": "terminate" }),
        ),
        MessageKind::RebalanceRecommendation => (
            "aws.ec2",
            "EC2 Instance Rebalance Recommendation",
            json!({ "instance-id": id }),
        ),
        MessageKind::InstanceStopped => (
            "aws.ec2",
            "EC2 Instance State-change Notification",
            json!({ "instance-id": id, "state": "stopped" }),
        ),
        MessageKind::InstanceTerminated => {
            let instance = endpoint.ec2().instance(&own.instance);
            let is_going = instance.is_some_and(|own| own.state == InstanceState::ShuttingDown);
            let state = if is_going {
                "shutting-down"
            } else {
                "terminated"
            };
            (
                "aws.ec2",
                "EC2 Instance State-change Notification",
                json!({ "instance-id": id, "state": state }),
            )
        }
        MessageKind::ScheduledChange => (
            "aws.health",
            "AWS Health Event",
            json!({
                "eventArn": format!("arn:aws:health:{region}::event/EC2/AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED/{}", own.receipt),
                "service": "EC2",
                "eventTypeCode": "AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED",
                "eventTypeCategory": "scheduledChange",
                "affectedEntities": [{ "entityValue": id }],
            }),
        ),
    };
    json!({
        "version": "0",
        "id": format!("00000000-0000-4000-9000-{:012x}", own.receipt),
        "detail-type": kind,
        "source": source,
        "account": account,
        "time": own.sent_at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "region": region,
        "resources": [arn],
        "detail": detail,
    })
}
