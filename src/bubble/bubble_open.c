/* bubble_open -- fills a table with the cells of clock_cells, or of a range and the configuration */
#include "bubble_table.h"

void bubble_open(Table *t, const Config *cfg, const BubbleRange *range, int timeless, int says)
{
    Wanted w = wanted_open(range);
    if (cfg->clock_cells) {
        bubble_add_file(t, cfg, &w);
    } else {
        Times time[TIMES];
        bubble_times(cfg, time);
        int given = (time[TIME_F].n > 0) + (time[TIME_D].n > 0) + (time[TIME_W].n > 0);
        if (given && given < 3)
            USAGE_ERROR("clock_forward_ms, clock_backward_input_ms and clock_backward_weight_ms go together; "
                        "change: give all three, or none");
        if (!given && !timeless)
            USAGE_ERROR(
                "nothing says how long a computation takes; change: give clock_forward_ms, "
                "clock_backward_input_ms and clock_backward_weight_ms (20 each, for example), or --simulate");
        for (int k = 0; k < TIME_HOP && !given; k++)
            time[k].ms[0] = time[k].n = 1;
        bubble_add_range(t, cfg, &w, time, says);
        bubble_times_close(time);
    }
    wanted_close(&w);
}
