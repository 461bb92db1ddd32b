"""Regular expressions for the names of resources in Google Cloud and S3.

An expression matches only characters that the service accepts in the name. So, if an administrator copies a matching
name into a shell, the name cannot act as an option or as another command. Some lengths are not checked here, because
the service rejects longer names without harm.
"""

# google/cloud/resourcemanager/v3/projects.proto, Project.project_id; older projects begin with a domain and a colon.
PROJECT = r"(?:[a-z0-9][a-z0-9.-]*:)?[a-z](?:[a-z0-9-]*[a-z0-9])?"
PROJECT_OR_NUMBER = rf"(?:[0-9]+|{PROJECT})"
REGION = r"[a-z]+-[a-z]+[0-9]+"  # https://cloud.google.com/vertex-ai/docs/general/locations
# google/iam/admin/v1/iam.proto, CreateServiceAccountRequest.account_id; App Engine's account of a project with a domain
# has dots before the @: https://cloud.google.com/iam/docs/service-account-types.
SERVICE_ACCOUNT = r"[a-z0-9][a-z0-9.-]*@[a-z0-9][a-z0-9.-]*"
# google/cloud/compute/v1/compute.proto: names of networks and network attachments (RFC 1035).
COMPUTE_NAME = r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?"
# google/cloud/kms/v1/service.proto: CreateKeyRingRequest.key_ring_id and CreateCryptoKeyRequest.crypto_key_id, which
# may also begin with `-`; such a name would be an option of gcloud.
_KEY_NAME = r"[a-zA-Z0-9_][a-zA-Z0-9_-]{0,62}"
ENCRYPTION_KEY = rf"projects/{PROJECT}/locations/[a-z0-9-]+/keyRings/{_KEY_NAME}/cryptoKeys/{_KEY_NAME}"
# https://cloud.google.com/storage/docs/buckets#naming
GOOGLE_BUCKET = r"[a-z0-9](?:[a-z0-9._-]{0,220}[a-z0-9])?"
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html; before March 2018, buckets in us-east-1
# could have 255 characters, among them capitals and underscores.
S3_BUCKET = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,253}[A-Za-z0-9])?"
