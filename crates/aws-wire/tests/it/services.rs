//! Services other than EC2, and faults from other processes.

use std::time::Duration;

use axum::{body::Body, http::Request};
use serde_json::{Value, json};

use crate::wire::{Answer, Wire};

impl Wire {
    async fn json(&self, target: &str, body: Value) -> (u16, Value) {
        let request = Request::post("/")
            .header("x-amz-target", target)
            .header("authorization", "AWS4-HMAC-SHA256")
            .body(Body::from(body.to_string()))
            .unwrap();
        let answer = self.send(request).await;
        (answer.status, serde_json::from_str(&answer.body).unwrap())
    }

    async fn fault(&self, change: Value) -> Answer {
        let request = Request::post("/mullion/faults").body(Body::from(change.to_string()));
        self.send(request.unwrap()).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_comes_again_until_it_is_deleted() {
    let wire = Wire::new();
    let instance = wire.instance("t").await;
    wire.ec2("TerminateInstances", &[("InstanceId.1", &instance)])
        .await;
    let url = "https://sqs.us-west-2.amazonaws.com/111122223333/demo";
    let receive = json!({"QueueUrl": url, "MaxNumberOfMessages": 10, "WaitTimeSeconds": 20, "VisibilityTimeout": 20});
    let (_, first) = wire.json("AmazonSQS.ReceiveMessage", receive.clone()).await;
    let messages = first["Messages"].as_array().unwrap();
    // It was shutting down and then terminated.
    assert_eq!(messages.len(), 2);
    let body: Value = serde_json::from_str(messages[0]["Body"].as_str().unwrap()).unwrap();
    assert_eq!(body["detail"]["instance-id"], instance);
    assert_eq!(
        body["detail-type"],
        "EC2 Instance State-change Notification"
    );
    let receipt = &messages[0]["ReceiptHandle"];
    let delete = json!({"QueueUrl": url, "ReceiptHandle": receipt});
    assert_eq!(wire.json("AmazonSQS.DeleteMessage", delete).await.0, 200);
    // It is hidden for 20 s.
    tokio::time::sleep(Duration::from_secs(20)).await;
    let (_, again) = wire.json("AmazonSQS.ReceiveMessage", receive.clone()).await;
    assert_eq!(again["Messages"].as_array().unwrap().len(), 1);
    assert_ne!(&again["Messages"][0]["ReceiptHandle"], receipt);
    let (_, none) = wire
        .json("AmazonSQS.ReceiveMessage", json!({"QueueUrl": url}))
        .await;
    assert_eq!(none, json!({}));
}

#[tokio::test(start_paused = true)]
async fn unknown_actions_and_fields_are_refused() {
    let wire = Wire::new();
    let (status, told) = wire.json("AmazonSSM.PutParameter", json!({})).await;
    assert_eq!(
        (status, &told["__type"]),
        (400, &json!("UnknownOperationException"))
    );
    let (_, told) = wire
        .json("AmazonSSM.GetParameter", json!({"Name": "/x", "Colour": 1}))
        .await;
    assert_eq!(told["__type"], "SerializationException");
    let (_, told) = wire.json("DynamoDB_20120810.ListTables", json!({})).await;
    assert_eq!(told["__type"], "UnknownOperationException");
    let get = Request::get("/clusters/other").header("authorization", "x");
    let answer = wire.send(get.body(Body::empty()).unwrap()).await;
    assert_eq!(answer.status, 404);
    assert!(answer.body.contains("No cluster found for name: other."));
}

#[tokio::test(start_paused = true)]
async fn zonal_shifts_of_the_cluster_are_told_by_its_arn() {
    let wire = Wire::new();
    let ask = async |method: &str, path: &str| {
        let request = Request::builder().method(method).uri(path);
        let request = request.header("authorization", "x").body(Body::empty());
        let answer = wire.send(request.unwrap()).await;
        let body: Value = serde_json::from_str(&answer.body).unwrap();
        (answer.status, body)
    };
    let (_, described) = ask("GET", "/clusters/demo").await;
    let arn = described["cluster"]["arn"].as_str().unwrap();
    let path = format!("/managedresources/{arn}");
    let (status, told) = ask("GET", &path).await;
    assert_eq!((status, &told["zonalShifts"]), (200, &json!([])));

    let shift = json!({"fault": "zonal-shift", "target": "us-west-2b"});
    wire.fault(json!({"cause": [shift]})).await;
    // As SDKs write it, and as it may be written as well.
    for escaped in [
        path.replace(':', "%3A").replace("r/", "r%2F"),
        path.replace(':', "%3a"),
    ] {
        let (status, told) = ask("GET", &escaped).await;
        let shift = &told["zonalShifts"][0];
        assert_eq!((status, &shift["awayFrom"]), (200, &json!("usw2-az2")));
        assert_eq!(shift["appliedStatus"], "APPLIED");
        assert!(shift["expiryTime"].as_i64() > shift["startTime"].as_i64());
    }
    wire.fault(json!({"heal": [shift]})).await;
    let (_, told) = ask("GET", &path).await;
    assert_eq!(told["zonalShifts"], json!([]));

    let (status, refused) = ask("GET", "/managedresources/arn:aws:eks:other").await;
    assert_eq!(
        (status, &refused["message"]),
        (
            404,
            &json!("There is no managed resource arn:aws:eks:other.")
        )
    );
    assert_eq!(ask("DELETE", &path).await.0, 404);
    wire.fault(json!({"deny": ["arc-zonal-shift:GetManagedResource"]}))
        .await;
    assert_eq!(ask("GET", &path).await.0, 403);
}

#[tokio::test(start_paused = true)]
async fn a_change_of_faults_that_is_wrong_in_part_changes_nothing() {
    let wire = Wire::new();
    let wrong = json!({"deny": ["ec2:DescribeSubnets"], "exhaust": ["a/b/c/d"]});
    let refused = wire.fault(wrong).await;
    assert_eq!(refused.status, 400);
    assert!(refused.body.contains("a/b/c/d"), "{}", refused.body);
    assert_eq!(wire.ec2("DescribeSubnets", &[]).await.status, 200);
    let unknown = wire.fault(json!({"break": "everything"})).await;
    assert!(
        unknown.body.contains("unknown field `break`"),
        "{}",
        unknown.body
    );
    let right = wire.fault(json!({"deny": ["ec2:DescribeSubnets"]})).await;
    assert_eq!(right.status, 200);
    assert_eq!(wire.ec2("DescribeSubnets", &[]).await.status, 403);
}

#[tokio::test(start_paused = true)]
async fn the_metadata_service_says_region_and_account_to_who_has_a_token() {
    let wire = Wire::new();
    let path = "/latest/dynamic/instance-identity/document";
    let read = |token: &str| {
        let request = Request::get(path).header("x-aws-ec2-metadata-token", token);
        request.body(Body::empty()).unwrap()
    };
    assert_eq!(wire.send(read("")).await.status, 401);
    let ask = |seconds: &str| {
        let request = Request::put("/latest/api/token");
        let request = request.header("x-aws-ec2-metadata-token-ttl-seconds", seconds);
        request.body(Body::empty()).unwrap()
    };
    assert_eq!(wire.send(ask("21601")).await.status, 400);
    let token = wire.send(ask("300")).await;
    assert_eq!(token.status, 200);
    let answer = wire.send(read(&token.body)).await;
    let document: Value = serde_json::from_str(&answer.body).unwrap();
    let account = &wire.endpoint.settings().account_id;
    assert_eq!(document["region"], "us-west-2");
    assert_eq!(document["accountId"], account.as_str());
}
