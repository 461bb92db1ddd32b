"""The page on security: for each of its promises the tests that hold it."""

import ast
import re

import pytest

from tests.support.cli import REPOSITORY

EXPLAINS = ""  # Says who is trusted, or what is not promised.

# By a sentence's first words.
HELD_BY = {
    "The risks depend": EXPLAINS,
    "`tests/test_security.py`": "tests/test_security.py::test_every_sentence_promises_what_tests_hold_or_explains",
    "Report a vulnerability": EXPLAINS,
    "Sources are not trusted": EXPLAINS,
    "A damaged file, or an image": """
        tests/components/create_tfrecords/test_writer.py::test_unreadable_images_over_budget_are_refused_by_name
        tests/components/core/examples/test_images.py::test_read_image_refuses_a_png_bomb_before_unpacking_it
        tests/components/core/examples/test_images.py::test_read_image_refuses_a_jpeg_bomb_before_unpacking_it""",
    "Image formats for which": """
        tests/components/core/examples/test_images.py::test_read_image_refuses_what_is_no_image""",
    "The name of an object": """
        tests/components/core/files/test_storage.py::test_localize_refuses_object_names_that_climb_out""",
    "Names of classes": """
        tests/components/core/base/test_terminal.py::test_control_characters_are_escaped_and_nothing_else
        tests/components/evaluate_model/test_report.py::test_a_report_shows_hostile_names_as_text_and_loads_nothing
        tests/components/preflight_training/test_report.py::test_page_shows_hostile_names_as_text_and_never_as_markup
        tests/components/deploy_model/test_card.py::test_what_strangers_named_stays_text
        tests/components/deploy_model/test_card.py::test_notes_stay_a_quotation_whatever_they_hold""",
    "A report has no scripts": """
        tests/components/evaluate_model/test_report.py::test_a_report_shows_hostile_names_as_text_and_loads_nothing
        tests/components/preflight_training/test_report.py::test_page_shows_hostile_names_as_text_and_never_as_markup""",
    "The unpacked content": """
        tests/evidence/fuzz/test_corpus.py::test_every_formats_worst_file_is_refused_within_its_memory""",
    "An image may have": """
        tests/evidence/fuzz/test_corpus.py::test_every_formats_worst_file_is_refused_within_its_memory
        tests/components/core/examples/test_images.py::test_read_image_refuses_a_png_bomb_before_unpacking_it""",
    "JSON and YAML may nest": """
        tests/evidence/fuzz/test_corpus.py::test_every_formats_worst_file_is_refused_within_its_memory
        tests/evidence/fuzz/test_corpus.py::test_what_was_ever_found_is_no_fault""",
    "`make fuzz` tests": """
        tests/evidence/fuzz/test_corpus.py::test_every_reader_reads_good_files
        tests/evidence/fuzz/test_corpus.py::test_what_was_ever_found_is_no_fault""",
    "Anyone with write access to the source": EXPLAINS,
    "The records keep": """
        tests/components/create_tfrecords/test_writer.py::test_the_fingerprint_changes_with_one_pixel_one_label_or_the_order
        tests/components/deploy_model/test_deploying.py::test_an_evaluation_of_another_model_is_refused""",
    "The file of your model": EXPLAINS,
    "From the folder in which": """
        tests/components/core/base/test_import_path.py::test_a_command_imports_nothing_from_the_current_folder
        tests/components/core/base/test_import_path.py::test_children_import_nothing_from_the_current_folder
        tests/components/core/base/test_import_path.py::test_no_step_and_no_worker_imports_from_the_current_folder
        tests/components/core/base/test_import_path.py::test_a_users_model_is_found_in_the_current_folder_while_it_is_imported_and_no_longer
        """,
    "The model's code is sent": """
        tests/components/core/models/test_bundle.py::test_another_file_under_a_digest_is_refused
        tests/components/core/models/test_bundle.py::test_credentials_do_not_travel""",
    "A `.keras` file": """
        tests/components/core/models/test_lookup.py::test_keras_file_with_code_of_its_own_is_refused
        tests/components/core/models/test_trained.py::test_architecture_with_code_of_its_own_is_refused""",
    "Files in the workspace": """
        tests/components/core/models/test_bundle.py::test_a_model_with_layers_of_its_own_is_rebuilt_from_the_code_beside_it
        """,
    "Paths in the cache": """
        tests/pipelines/runs/test_step_cache.py::test_a_folder_elsewhere_is_neither_read_nor_deleted
        tests/pipelines/runs/test_step_cache.py::test_a_link_out_of_the_cache_is_not_followed
        tests/pipelines/runs/test_step_cache.py::test_entries_that_are_linked_from_elsewhere_are_neither_changed_nor_deleted
        tests/pipelines/runs/test_step_cache.py::test_a_copied_workspace_reads_its_own
        tests/pipelines/runs/test_run_local.py::test_a_copied_workspace_works_and_touches_nothing_outside_itself""",
    "Symbolic links in place": """
        tests/components/core/files/test_storage.py::test_a_lock_that_is_a_link_is_refused
        tests/components/core/files/test_storage.py::test_a_new_file_is_not_what_a_link_points_at""",
    "The compile cache": """
        tests/components/preflight_training/compiling/test_compile_cache.py::test_what_is_kept_is_recalled_from_a_private_folder
        tests/components/preflight_training/compiling/test_compile_cache.py::test_a_file_that_was_changed_or_is_another_key_s_is_none
        tests/components/preflight_training/compiling/test_compile_cache.py::test_what_others_may_have_written_is_none
        tests/components/preflight_training/compiling/test_compile_cache.py::test_another_users_folder_is_neither_read_nor_written""",
    "All users of a registry": EXPLAINS,
    "Versions are read-only": """
        tests/components/core/registry/test_folder.py::test_writing_to_a_run_changes_no_version""",
    "Every file of a version": """
        tests/components/core/registry/test_folder.py::test_every_file_of_a_version_is_checked
        tests/components/core/registry/test_folder.py::test_no_alias_moves_to_a_version_with_damaged_files
        tests/components/core/registry/test_folder.py::test_a_part_of_a_version_on_a_bucket_is_checked
        tests/components/evaluate_model/test_champion.py::test_a_damaged_champion_is_named_and_never_beaten
        tests/pipelines/cli/test_registry.py::test_list_names_every_damaged_version_with_its_files
        tests/components/core/registry/test_folder.py::test_a_versions_digest_covers_all_of_its_files""",
    "Anyone who can rewrite a version": EXPLAINS,
    "A run promotes no model": """
        tests/components/deploy_model/test_deploying.py::test_a_model_that_the_gate_refused_is_not_even_registered
        tests/components/core/registry/test_folder.py::test_an_alias_that_moved_since_the_comparison_stays
        tests/components/core/registry/test_folder.py::test_of_two_different_ones_at_once_only_one_becomes_champion""",
    "`tpu-pipelines registry promote` promotes": EXPLAINS,
    "With `deploy.signing_key`": """
        tests/components/deploy_model/test_deploying.py::test_a_version_is_signed_and_verified_before_it_is_the_champion
        tests/components/deploy_model/test_vertex.py::test_a_version_is_signed_in_the_bucket_and_its_servers_verify_it
        tests/components/core/registry/test_signing.py::test_the_librarys_own_command_verifies_what_is_signed_here_and_the_other_way_round""",
    "Write access to the registry": EXPLAINS,
    "With the public key": """
        tests/components/core/registry/test_signing.py::test_what_was_changed_after_it_was_signed_is_refused
        tests/components/deploy_model/test_deploying.py::test_a_version_that_was_changed_after_it_was_signed_is_not_promoted
        tests/pipelines/cli/test_registry.py::test_with_a_key_the_champion_moves_only_to_a_version_that_is_signed
        tests/pipelines/cli/test_registry.py::test_verify_says_whether_a_version_or_an_export_is_as_it_was_signed""",
    "They also reject": """
        tests/components/core/registry/test_signing.py::test_another_key_is_refused
        tests/components/core/registry/test_signing.py::test_a_versions_signature_is_over_all_of_it
        tests/components/core/registry/test_signing.py::test_a_signature_whose_signer_passes_files_over_is_refused""",
    "A server copies the files": """
        tests/components/serving/test_bucket.py::test_what_is_loaded_is_a_verified_copy_that_nobody_changes_any_more
        tests/components/serving/test_bucket.py::test_nothing_is_loaded_whose_signature_does_not_hold
        tests/components/serving/test_params.py::test_a_key_that_did_not_arrive_is_refused
        tests/components/serving/test_params.py::test_every_command_that_serves_heeds_the_flag_and_the_variable""",
    "An export inside a version": """
        tests/components/core/registry/test_signing.py::test_another_signed_export_in_a_version_is_not_loaded
        tests/components/core/registry/test_signing.py::test_a_version_in_the_place_of_another_one_is_refused
        tests/components/core/registry/test_signing.py::test_on_a_bucket_a_version_and_the_export_alone_are_verified""",
    "The step signs only": """
        tests/components/core/registry/test_signing.py::test_a_version_that_is_there_unsigned_stays_unsigned
        tests/components/deploy_model/test_deploying.py::test_a_version_from_before_stays_unsigned_and_is_said_to""",
    "Versions, compiled pipelines": """
        tests/components/core/registry/test_signing.py::test_the_private_key_is_in_no_file_of_a_version
        tests/components/core/registry/test_signing.py::test_what_is_no_key_is_named_before_anything_is_registered
        tests/pipelines/pipeline/test_compile.py::test_of_the_keys_a_compiled_pipeline_holds_the_public_one_and_where_the_private_one_is
        tests/components/deploy_model/test_deploying.py::test_params_check_themselves""",
    "A container on Vertex AI gets": EXPLAINS,
    "A signature does not protect": EXPLAINS,
    "A signature does not stop anyone": EXPLAINS,
    "The evaluation of a champion": EXPLAINS,
    "Anyone who may submit": EXPLAINS,
    "A configuration and a compiled pipeline": """
        tests/pipelines/pipeline/test_compile.py::test_a_pod_mounts_secrets_and_volumes_and_keeps_its_checkpoints_on_the_first""",
    "Credentials in a URL": """
        tests/pipelines/platforms/kubeflow/test_client.py::test_no_message_and_no_address_shows_the_credentials_of_a_server
        tests/components/core/base/test_terminal.py::test_credentials_in_addresses_are_hidden_and_nothing_else
        tests/components/core/component/test_step_record.py::test_a_record_holds_no_password_of_an_address
        tests/components/core/files/test_object_stores.py::test_the_password_in_the_address_of_a_store_is_not_in_the_error
        tests/pipelines/runs/test_tracking.py::test_a_password_in_the_address_of_the_tracker_is_neither_printed_nor_stored
        """,
    "A name in a configuration": """
        tests/pipelines/checks/test_doctor_script.py::test_every_word_of_a_command_is_quoted
        tests/pipelines/checks/test_doctor_script.py::test_a_hostile_context_of_kubectl_stays_one_word
        tests/components/core/files/test_object_stores.py::test_a_name_that_no_bucket_has_is_refused_where_it_is_read""",
    "A webhook's URL": """
        tests/components/core/component/test_notification.py::test_a_malformed_secret_is_refused_and_not_shown
        tests/components/core/component/test_notification.py::test_a_redirect_is_refused_and_not_followed_without_the_message""",
    "Only those who can push": """
        tests/test_workflow.py::test_retraining_runs_on_one_branch_and_one_at_a_time
        tests/test_workflow.py::test_the_identity_provider_takes_this_workflow_on_this_branch_alone""",
    "The workflow installs": """
        tests/test_workflow.py::test_the_checkout_is_installed_by_the_lock_before_there_is_a_token""",
    "Actions and packages are pinned": """
        tests/test_workflow.py::test_nothing_that_a_job_uses_can_be_changed_behind_it""",
    "Clients of the server": EXPLAINS,
    "By default it listens": "tests/test_security.py::test_the_server_listens_on_this_machine_alone",
    "Silent or slow clients": """
        tests/components/serving/test_http.py::test_a_head_that_does_not_arrive_is_not_waited_for
        tests/components/serving/test_http.py::test_a_head_may_not_come_byte_by_byte_for_longer
        tests/components/serving/test_http.py::test_a_client_that_does_not_take_its_answer_is_left
        tests/components/serving/test_application.py::test_bodies_that_do_not_end_hold_no_request_slot_and_no_more_bytes_than_allowed
        tests/components/serving/test_application.py::test_one_request_too_many_gets_503_and_when_to_retry
        tests/components/serving/test_instances.py::test_images_with_too_many_pixels_in_all_are_refused_before_they_are_decoded
        tests/components/serving/test_instances.py::test_a_jpeg_of_many_scans_is_refused_because_each_is_a_pass_over_all_pixels
        tests/components/serving/test_server.py::test_small_requests_do_not_wait_for_large_ones""",
    "Clients that withhold": EXPLAINS,
    "An HTTP request whose end": """
        tests/components/serving/test_http.py::test_a_request_whose_end_is_ambiguous_is_refused_and_nothing_behind_it_is_answered
        tests/components/serving/test_http.py::test_a_body_whose_end_is_ambiguous_is_refused_and_nothing_behind_it_is_answered""",
    "The HTTP library": EXPLAINS,
    "The logs contain": """
        tests/components/serving/test_application.py::test_log_has_a_line_per_request_and_no_content""",
    "`make install`, the images and": """
        tests/test_repository.py::test_the_lock_names_no_index_and_pins_every_package_with_hashes
        tests/test_supply.py::test_the_images_are_built_on_one_of_a_known_digest""",
    "`pip install` of the wheel": EXPLAINS,
    "`make audit` looks up": """
        tests/test_supply.py::test_vulnerabilities_are_asked_of_everything_that_is_locked
        tests/test_supply.py::test_every_locked_package_may_be_in_an_image_that_others_get""",
    "A step or run can be killed": """
        tests/evidence/kills/test_kills.py::test_killed_at_any_moment_every_step_and_the_run_give_the_same_again
        tests/components/core/registry/test_folder.py::test_killed_at_any_moment_it_leaves_the_old_state_or_the_new_and_can_go_on
        tests/components/train_model/test_resume.py::test_killed_training_continues_to_the_same_weights""",
    "On SIGTERM": """
        tests/components/train_model/test_resume.py::test_training_that_sigterm_ends_saves_at_once_and_continues_to_the_same_weights
        tests/components/core/base/test_termination.py::test_what_is_half_written_is_removed""",
    "On Kubeflow a step": EXPLAINS,
    "The training continues": EXPLAINS,
    "Without a volume": EXPLAINS,
}


def sentences():
    """Sentences of the page, without its headings, commands and marks."""
    page = (REPOSITORY / ".github" / "SECURITY.md").read_text()
    text = re.sub(r"^```.*?^```$|^#[^\n]*$|^- ", "", page, flags=re.DOTALL | re.MULTILINE)
    return [text for text in re.split(r"(?<=\.)\s+", text.strip()) if text]


def test_every_sentence_promises_what_tests_hold_or_explains():
    starts = [[start for start in HELD_BY if text.startswith(start)] for text in sentences()]
    assert [text for text, found in zip(sentences(), starts, strict=True) if len(found) != 1] == []
    assert [start for found in starts for start in found] == list(HELD_BY)


@pytest.mark.parametrize("test", sorted({test for tests in HELD_BY.values() for test in tests.split()}))
def test_a_test_that_is_named_is_there(test):
    path, _, name = test.partition("::")
    defined = [
        node.name for node in ast.walk(ast.parse((REPOSITORY / path).read_text())) if isinstance(node, ast.FunctionDef)
    ]
    assert name in defined


def test_the_server_listens_on_this_machine_alone():
    from tpu_components.serving.params import ServeParams

    assert ServeParams().host == "127.0.0.1"
