"""boto3 and the AWS CLI against `mullion cloud`: what Karpenter and the VPC resource controller ask of AWS.

AWS_ENDPOINT_URL, AWS_REGION and credentials are in the environment; the account is that of a cluster named `demo` whose subnets are /27.
"""

import json
import os
import subprocess
import sys
import unittest
import urllib.request

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

# A refusal is to be seen, not retried.
ONCE = Config(retries={"total_max_attempts": 1}, parameter_validation=True)
ZONES = ["us-west-2a", "us-west-2b", "us-west-2c"]


def client(service):
    return boto3.client(service, config=ONCE)


def fault(**change):
    request = urllib.request.Request(
        os.environ["AWS_ENDPOINT_URL"] + "/mullion/faults", data=json.dumps(change).encode(), method="POST"
    )
    # The endpoint is on this machine, whatever proxy the environment names.
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
        return json.load(answer)["done"]


class Session(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.ec2 = client("ec2")
        cls.image = cls.parameter("x86_64/standard")
        cls.ec2.create_launch_template(
            LaunchTemplateName="karpenter.k8s.aws/1",
            LaunchTemplateData={
                "ImageId": cls.image,
                "UserData": "IyEvYmluL3No",
                "IamInstanceProfile": {"Name": "nodes"},
                "BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 30, "VolumeType": "gp3", "Encrypted": True}}],
                "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
                "NetworkInterfaces": [{"DeviceIndex": 0, "AssociatePublicIpAddress": False}],
                "TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "from", "Value": "template"}]}],
            },
            TagSpecifications=[{"ResourceType": "launch-template", "Tags": [{"Key": "karpenter.k8s.aws/cluster", "Value": "demo"}]}],
        )

    @staticmethod
    def parameter(path):
        version = client("eks").describe_cluster(name="demo")["cluster"]["version"]
        name = f"/aws/service/eks/optimized-ami/{version}/amazon-linux-2023/{path}/recommended/image_id"
        return client("ssm").get_parameter(Name=name)["Parameter"]["Value"]

    def tearDown(self):
        ids = [own["InstanceId"] for own in self.instances("pending", "running")]
        if ids:
            self.ec2.terminate_instances(InstanceIds=ids)

    def refused(self, code, status, call, **arguments):
        with self.assertRaises(ClientError) as refusal:
            call(**arguments)
        found = refusal.exception.response
        self.assertEqual((found["Error"]["Code"], found["ResponseMetadata"]["HTTPStatusCode"]), (code, status), found)
        return found["Error"]["Message"]

    def instances(self, *states):
        pages = self.ec2.get_paginator("describe_instances").paginate(
            Filters=[{"Name": "instance-state-name", "Values": list(states)}], PaginationConfig={"PageSize": 5}
        )
        return [own for page in pages for group in page["Reservations"] for own in group["Instances"]]

    def fleet(self, *kinds, count=1, capacity="on-demand", zones=ZONES, **more):
        subnets = self.ec2.describe_subnets(Filters=[{"Name": "availability-zone", "Values": zones}])["Subnets"]
        overrides = [{"InstanceType": kind, "SubnetId": own["SubnetId"]} for kind in kinds for own in subnets]
        return self.ec2.create_fleet(
            Type="instant",
            LaunchTemplateConfigs=[
                {"LaunchTemplateSpecification": {"LaunchTemplateName": "karpenter.k8s.aws/1", "Version": "$Latest"}, "Overrides": overrides}
            ],
            TargetCapacitySpecification={"TotalTargetCapacity": count, "DefaultTargetCapacityType": capacity},
            TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "karpenter.sh/nodepool", "Value": "default"}]}],
            **more,
        )

    def one(self, *kinds, **more):
        return self.fleet(*kinds, **more)["Instances"][0]["InstanceIds"][0]

    def test_what_is_bought_is_described_as_it_was_asked_for(self):
        answer = self.fleet("m5.large", "m5.4xlarge", capacity="spot", SpotOptions={"AllocationStrategy": "price-capacity-optimized"})
        (bought,) = answer["Instances"]
        self.assertEqual((bought["InstanceType"], bought["Lifecycle"]), ("m5.large", "spot"))
        (instance,) = self.instances("running")
        self.assertEqual(instance["InstanceId"], bought["InstanceIds"][0])
        self.assertEqual(instance["ImageId"], self.image)
        self.assertEqual(instance["InstanceLifecycle"], "spot")
        self.assertTrue(instance["IamInstanceProfile"]["Arn"].endswith(":instance-profile/nodes"))
        tags = {own["Key"]: own["Value"] for own in instance["Tags"]}
        self.assertEqual((tags["karpenter.sh/nodepool"], tags["from"]), ("default", "template"))
        (interface,) = instance["NetworkInterfaces"]
        self.assertEqual(interface["PrivateIpAddress"], instance["PrivateIpAddress"])
        self.ec2.create_tags(Resources=[instance["InstanceId"]], Tags=[{"Key": "Name", "Value": "a & b"}])
        found = self.ec2.describe_instances(Filters=[{"Name": "tag:Name", "Values": ["a*"]}])
        self.assertEqual(found["Reservations"][0]["Instances"][0]["InstanceId"], instance["InstanceId"])

    def test_a_token_buys_once(self):
        first = self.one("m5.large", ClientToken="claim-1")
        self.assertEqual(self.one("m5.large", ClientToken="claim-1"), first)
        self.refused("IdempotentParameterMismatch", 400, self.fleet, ClientToken="claim-1", count=2)
        self.assertEqual(len(self.instances("running")), 1)

    def test_an_instance_is_terminated_twice(self):
        instance = self.one("m5.large")
        changes = [self.ec2.terminate_instances(InstanceIds=[instance])["TerminatingInstances"][0] for _ in range(2)]
        self.assertEqual([own["CurrentState"]["Name"] for own in changes], ["shutting-down", "terminated"])
        self.refused("InvalidInstanceID.NotFound", 400, self.ec2.terminate_instances, InstanceIds=["i-00000000000000000"])
        self.refused("InvalidInstanceID.Malformed", 400, self.ec2.terminate_instances, InstanceIds=["web"])

    def test_what_is_sold_out_is_told_and_the_next_is_bought(self):
        fault(exhaust=["m5.large"])
        try:
            answer = self.fleet("m5.large", "m5.xlarge")
            codes = [own["ErrorCode"] for own in answer["Errors"]]
            self.assertEqual(codes, ["InsufficientInstanceCapacity"] * 3)
            zones = [own["LaunchTemplateAndOverrides"]["Overrides"]["AvailabilityZone"] for own in answer["Errors"]]
            self.assertEqual(sorted(zones), ZONES)
            self.assertEqual(answer["Instances"][0]["InstanceType"], "m5.xlarge")
            nothing = self.fleet("m5.large")
            self.assertEqual((nothing["Instances"], len(nothing["Errors"])), ([], 3))
            run = dict(ImageId=self.image, InstanceType="m5.large", MinCount=1, MaxCount=1)
            self.refused("InsufficientInstanceCapacity", 500, self.ec2.run_instances, **run)
        finally:
            fault(replenish=["m5.large"])

    def test_a_subnet_runs_out_of_prefixes_and_then_of_addresses(self):
        instance = self.one("m5.8xlarge", zones=["us-west-2c"])
        (found,) = self.ec2.describe_network_interfaces(Filters=[{"Name": "attachment.instance-id", "Values": [instance]}])["NetworkInterfaces"]
        interface = found["NetworkInterfaceId"]
        assign, unassign = self.ec2.assign_private_ip_addresses, self.ec2.unassign_private_ip_addresses
        subnet = lambda: self.ec2.describe_subnets(SubnetIds=[found["SubnetId"]])["Subnets"][0]["AvailableIpAddressCount"]
        free = subnet()
        # A /27 has two blocks of /28, of which neither is whole: five addresses are the VPC's own, and the instance has one.
        message = self.refused("InsufficientCidrBlocks", 400, assign, NetworkInterfaceId=interface, Ipv4PrefixCount=1)
        self.assertIn("cidr blocks", message)
        given = assign(NetworkInterfaceId=interface, SecondaryPrivateIpAddressCount=3)["AssignedPrivateIpAddresses"]
        given = [own["PrivateIpAddress"] for own in given]
        self.assertEqual((len(set(given)), subnet()), (3, free - 3))
        self.refused("InsufficientFreeAddressesInSubnet", 400, assign, NetworkInterfaceId=interface, SecondaryPrivateIpAddressCount=free - 2)
        self.refused("PrivateIpAddressLimitExceeded", 400, assign, NetworkInterfaceId=interface, SecondaryPrivateIpAddressCount=40)
        unassign(NetworkInterfaceId=interface, PrivateIpAddresses=given)
        self.assertEqual(subnet(), free)
        self.refused("InvalidParameterValue", 400, unassign, NetworkInterfaceId=interface, PrivateIpAddresses=given)
        self.refused("InvalidNetworkInterfaceID.NotFound", 400, unassign, NetworkInterfaceId="eni-00000000000000000", PrivateIpAddresses=given)

    def test_a_full_subnet_takes_no_instance(self):
        subnet = self.ec2.describe_subnets(Filters=[{"Name": "availability-zone", "Values": ["us-west-2b"]}])["Subnets"][0]
        free = subnet["AvailableIpAddressCount"]
        answer = self.fleet("m5.large", zones=["us-west-2b"], count=free + 2)
        self.assertEqual(len(answer["Instances"][0]["InstanceIds"]), free)
        self.assertEqual([own["ErrorCode"] for own in answer["Errors"]], ["InsufficientFreeAddressesInSubnet"])
        self.assertEqual(len(self.instances("running")), free)

    def test_calls_are_throttled_and_denied(self):
        fault(throttle={"ec2:DescribeSubnets": 1}, deny=["ec2:RunInstances", "iam:GetRole", "eks:DescribeCluster", "ssm:GetParameter"])
        try:
            self.refused("RequestLimitExceeded", 503, self.ec2.describe_subnets)
            self.assertEqual(len(self.ec2.describe_subnets()["Subnets"]), 3)
            run = dict(ImageId=self.image, InstanceType="m5.large", MinCount=1, MaxCount=1)
            self.assertIn("ec2:RunInstances", self.refused("UnauthorizedOperation", 403, self.ec2.run_instances, **run))
            self.refused("AccessDenied", 403, client("iam").get_role, RoleName="KarpenterNodeRole-demo")
            self.refused("AccessDeniedException", 403, client("eks").describe_cluster, name="demo")
            self.refused("AccessDeniedException", 400, client("ssm").get_parameter, Name="/x")
        finally:
            fault(allow=["ec2:RunInstances", "iam:GetRole", "eks:DescribeCluster", "ssm:GetParameter"])

    def test_a_dry_run_says_that_it_would_do(self):
        run = dict(ImageId=self.image, InstanceType="m5.large", MinCount=1, MaxCount=1, DryRun=True)
        self.refused("DryRunOperation", 412, self.ec2.run_instances, **run)
        self.refused("DryRunOperation", 412, self.fleet, DryRun=True)
        self.assertEqual(self.instances("running"), [])

    def test_wrong_input_is_refused(self):
        run = dict(ImageId=self.image, InstanceType="zz9.plural", MinCount=1, MaxCount=1)
        self.refused("InvalidParameterValue", 400, self.ec2.run_instances, **run)
        self.refused("InvalidAMIID.NotFound", 400, self.ec2.describe_images, ImageIds=["ami-00000000000000000"])
        self.refused("InvalidSubnetID.NotFound", 400, self.ec2.describe_subnets, SubnetIds=["subnet-1"])
        self.refused("InvalidAction", 400, self.ec2.create_vpc, CidrBlock="10.0.0.0/16")
        self.refused("InvalidParameterValue", 400, self.ec2.describe_instances, MaxResults=4)
        self.refused("InvalidParameterValue", 400, self.ec2.describe_instances, NextToken="x")
        self.refused("InvalidLaunchTemplateName.AlreadyExistsException", 400, self.ec2.create_launch_template,
                     LaunchTemplateName="karpenter.k8s.aws/1", LaunchTemplateData={"ImageId": self.image})
        self.refused("InvalidLaunchTemplateName.NotFoundException", 400, self.ec2.delete_launch_template, LaunchTemplateName="gone")

    def test_pages_hold_all_instances_once(self):
        self.fleet("m5.large", count=12)
        found = self.instances("running")
        self.assertEqual(len({own["InstanceId"] for own in found}), 12)
        self.assertEqual(len(found), 12)

    def test_types_offerings_and_prices_agree(self):
        pages = self.ec2.get_paginator("describe_instance_types").paginate(
            Filters=[{"Name": "processor-info.supported-architecture", "Values": ["x86_64"]}]
        )
        types = {own["InstanceType"]: own for page in pages for own in page["InstanceTypes"]}
        self.assertGreater(len(types), 500)
        large = types["m5.large"]
        self.assertEqual((large["VCpuInfo"]["DefaultVCpus"], large["MemoryInfo"]["SizeInMiB"], large["Hypervisor"]), (2, 8192, "nitro"))
        pages = self.ec2.get_paginator("describe_instance_type_offerings").paginate(LocationType="availability-zone")
        places = {(own["InstanceType"], own["Location"]) for page in pages for own in page["InstanceTypeOfferings"]}
        self.assertIn(("m5.large", "us-west-2c"), places)
        filters = {"regionCode": "us-west-2", "serviceCode": "AmazonEC2", "preInstalledSw": "NA", "operatingSystem": "Windows",
                   "capacitystatus": "Used", "marketoption": "OnDemand", "tenancy": "Shared", "productFamily": "Compute Instance"}
        filters = [{"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in filters.items()]
        pages = client("pricing").get_paginator("get_products").paginate(ServiceCode="AmazonEC2", Filters=filters)
        prices = {}
        for text in [text for page in pages for text in page["PriceList"]]:
            own = json.loads(text)
            (term,) = own["terms"]["OnDemand"].values()
            (dimension,) = term["priceDimensions"].values()
            prices[own["product"]["attributes"]["instanceType"]] = float(dimension["pricePerUnit"]["USD"])
        self.assertAlmostEqual(prices["c6a.xlarge"], 0.337)
        for product, price in [("Windows", 0.237550), ("Linux/UNIX", 0.053550)]:
            found = self.ec2.describe_spot_price_history(InstanceTypes=["c6a.xlarge"], ProductDescriptions=[product])["SpotPriceHistory"]
            self.assertEqual([float(own["SpotPrice"]) for own in found], [price] * 3)

    def test_an_interruption_is_in_the_queue_until_it_is_deleted(self):
        instance = self.one("m5.large", capacity="spot")
        fault(cause=[{"fault": "spot-interruption", "target": instance}])
        sqs = client("sqs")
        url = sqs.get_queue_url(QueueName="demo")["QueueUrl"]
        details = {}
        while True:
            messages = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=20).get("Messages", [])
            if not messages:
                break
            for own in messages:
                body = json.loads(own["Body"])
                details[body["detail-type"], body["detail"]["instance-id"]] = body
                sqs.delete_message(QueueUrl=url, ReceiptHandle=own["ReceiptHandle"])
        body = details["EC2 Spot Instance Interruption Warning", instance]
        self.assertEqual((body["source"], body["detail"]["instance-action"]), ("aws.ec2", "terminate"))
        self.refused("AWS.SimpleQueueService.NonExistentQueue", 400, sqs.get_queue_url, QueueName="other")

    def test_instance_profiles_have_one_role_at_most(self):
        iam, name, role = client("iam"), "demo_1", "KarpenterNodeRole-demo"
        iam.create_instance_profile(InstanceProfileName=name, Path="/karpenter/us-west-2/demo/", Tags=[{"Key": "a", "Value": "b"}])
        self.refused("EntityAlreadyExists", 409, iam.create_instance_profile, InstanceProfileName=name)
        self.refused("NoSuchEntity", 404, iam.add_role_to_instance_profile, InstanceProfileName=name, RoleName="gone")
        iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=role)
        self.refused("LimitExceeded", 409, iam.add_role_to_instance_profile, InstanceProfileName=name, RoleName=role)
        found = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
        self.assertEqual((found["Roles"][0]["RoleName"], found["Tags"]), (role, [{"Key": "a", "Value": "b"}]))
        listed = iam.list_instance_profiles(PathPrefix="/karpenter/")["InstanceProfiles"]
        self.assertEqual([own["InstanceProfileName"] for own in listed], [name])
        self.refused("DeleteConflict", 409, iam.delete_instance_profile, InstanceProfileName=name)
        iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=role)
        iam.delete_instance_profile(InstanceProfileName=name)
        self.refused("NoSuchEntity", 404, iam.get_instance_profile, InstanceProfileName=name)
        self.assertEqual(client("sts").get_caller_identity()["Account"], "111122223333")

    def test_images_are_found_by_owner_and_name(self):
        (image,) = self.ec2.describe_images(ImageIds=[self.image])["Images"]
        self.assertEqual(image["Architecture"], "x86_64")
        named = self.ec2.describe_images(Owners=["amazon"], Filters=[{"Name": "name", "Values": [image["Name"]]}])["Images"]
        self.assertEqual([own["ImageId"] for own in named], [self.image])
        windows = self.ec2.describe_images(Owners=["amazon"], Filters=[{"Name": "platform", "Values": ["windows"]}])["Images"]
        self.assertTrue(windows and all("Windows_Server" in own["Name"] for own in windows))
        self.assertNotEqual(self.parameter("arm64/standard"), self.image)
        self.refused("ParameterNotFound", 400, client("ssm").get_parameter, Name="/aws/service/none")

    def test_zones_reservations_groups_and_checks_are_described(self):
        zones = self.ec2.describe_availability_zones()["AvailabilityZones"]
        self.assertEqual([own["ZoneName"] for own in zones], ZONES)
        self.assertEqual(self.ec2.describe_capacity_reservations()["CapacityReservations"], [])
        self.assertEqual(self.ec2.describe_placement_groups()["PlacementGroups"], [])
        self.refused("InvalidPlacementGroup.Unknown", 400, self.ec2.describe_placement_groups, GroupNames=["g"])
        groups = self.ec2.describe_security_groups(Filters=[{"Name": "tag:karpenter.sh/discovery", "Values": ["demo"]}])["SecurityGroups"]
        self.assertEqual([own["GroupName"] for own in groups], ["demo-node"])
        instance = self.one("m5.large")
        (status,) = self.ec2.describe_instance_status(InstanceIds=[instance])["InstanceStatuses"]
        self.assertEqual((status["InstanceStatus"]["Status"], status["SystemStatus"]["Status"]), ("ok", "ok"))

    def test_the_aws_cli_reads_the_same(self):
        def aws(*arguments, expected=0):
            done = subprocess.run([sys.executable, "-m", "awscli", *arguments, "--output", "json"], capture_output=True, text=True)
            self.assertEqual(done.returncode, expected, done.stderr)
            return json.loads(done.stdout) if expected == 0 else done.stderr

        subnets = aws("ec2", "describe-subnets", "--query", "Subnets[].CidrBlock")
        self.assertEqual(sorted(subnets), ["10.0.0.0/27", "10.0.0.32/27", "10.0.0.64/27"])
        run = ["--image-id", self.image, "--instance-type", "m5.large", "--client-token", "cli"]
        bought = aws("ec2", "run-instances", *run)["Instances"][0]
        again = aws("ec2", "run-instances", *run)["Instances"][0]
        self.assertEqual(again["InstanceId"], bought["InstanceId"])
        refused = aws("ec2", "run-instances", "--image-id", "ami-00000000000000000", "--instance-type", "m5.large", expected=255)
        self.assertIn("InvalidAMIID.NotFound", refused)


if __name__ == "__main__":
    unittest.main(verbosity=2)
