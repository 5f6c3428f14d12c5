/*
 * test_power_grace.c - the power meters of Grace sockets, in every layout of sysfs: joules against
 * the exact integral, caps, and meters of others beside them.
 */
#include "power_machine.h"

/* ---- Grace --------------------------------------------------------------------------------- */

static void check_grace(int sockets)
{
    static const ls_rail rails[] = {LS_RAIL_MODULE, LS_RAIL_GRACE, LS_RAIL_CPU, LS_RAIL_SYSIO};

    open_power(NO_NVML);
    run_until(1.0);
    enter_phase(PHASE_FORWARD, 1.03);
    run_until(48.7);
    const ls_power_sums sums = take_sums(48.77);
    for (int k = 0; k < 4; k++) {
        assert_near(sums.joules[rails[k]],
                    sockets * exact_joules(grace_meters[k].power, 1.03, 48.77), 0.01);
        assert_int_equal(sums.method[rails[k]], LS_METHOD_METER);
    }
    close_power();
}

static void test_grace_in_device_folders(void **state)
{
    (void)state;
    make_machine();
    add_socket(0, "old");
    check_grace(1);
}

static void test_grace_in_hwmon_folders(void **state)
{
    (void)state;
    make_machine();
    add_socket(0, "new");
    check_grace(1);
}

static void assert_fact(const ls_meters *m, const char *what, const char *says)
{
    for (int f = 0; f < m->n_facts; f++) {
        if (strcmp(m->facts[f].what, what) != 0) continue;
        assert_string_equal(m->facts[f].why, says);
        return;
    }
    fail_msg("no fact %s", what);
}

/* The platform's cap of a socket is on record, with or without its upper end; of others nothing. */
static void test_grace_caps(void **state)
{
    static ls_meters m;

    (void)state;
    make_machine();
    add_socket(0, "new");
    put_machine_file(root, "/sys/class/hwmon/hwmon40/power1_cap", "1000000000");
    put_machine_file(root, "/sys/class/hwmon/hwmon39/power1_cap", "300000000");
    put_machine_file(root, "/sys/class/hwmon/hwmon39/power1_cap_max", "500000000");
    put_machine_file(root, "/sys/class/hwmon/hwmon38/power1_cap", "none");
    open_meters(&m, NO_NVML);
    assert_int_equal(m.n_facts, 2);
    assert_fact(&m, "grace.module-0.limit", "1000.0 W now");
    assert_fact(&m, "grace.grace-0.limit", "300.0 W now, 500.0 W at most");
    ls_meters_close(&m);
}

static void test_grace_in_one_folder(void **state)
{
    (void)state;
    make_machine();
    add_socket(0, "shared");
    check_grace(1);
}

static void test_grace_quad(void **state)
{
    static ls_meters m;

    (void)state;
    make_machine();
    for (int socket = 0; socket < 4; socket++) add_socket(socket, "new");
    open_meters(&m, NO_NVML);
    const ls_sensor *sensor = find_sensor(&m, "grace.sysio-3");
    assert_non_null(sensor);
    assert_true(sensor->rail == LS_RAIL_SYSIO && sensor->domain == 3);
    assert_true(sensor->window_s == 0.05);
    assert_string_equal(m.sensors[0].id, "grace.module-0"); /* whatever folders come first */
    ls_meters_close(&m);
    check_grace(4);
}

/* A server's own ACPI meter is not one of Grace's. */
static void test_other_meters_are_left_out(void **state)
{
    static ls_meters m;

    (void)state;
    make_machine();
    put_machine_file(root, "/sys/class/hwmon/hwmon0/power1_oem_info", "System Board");
    put_machine_file(root, "/sys/class/hwmon/hwmon0/power1_average", "123000000");
    open_meters(&m, NO_NVML);
    assert_false(ls_meters_have_power(&m));
    assert_non_null(strstr(why_missing(&m, "hwmon"), "System Board"));
    ls_meters_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grace_in_device_folders),
        cmocka_unit_test(test_grace_in_hwmon_folders),
        cmocka_unit_test(test_grace_caps),
        cmocka_unit_test(test_grace_in_one_folder),
        cmocka_unit_test(test_grace_quad),
        cmocka_unit_test(test_other_meters_are_left_out),
    };
    return cmocka_run_group_tests(tests, make_machines, remove_machines);
}
