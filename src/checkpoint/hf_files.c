/* hf_files -- which files of a Hugging Face directory hold its weights */
#define _GNU_SOURCE
#include "hf_json.h"
#include <fcntl.h>
#include <unistd.h>

#define JSON_MAX ((int64_t)256 << 20)

json_t *hf_read_json(int dir, const char *name, char why[WHY])
{
    json_error_t error;
    int64_t n;
    char *text = file_read_text(dir, name, 0, JSON_MAX, &n, why);
    if (!text)
        return NULL;
    json_t *j = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (!json_is_object(j)) {
        if (j)
            file_why(why, "%s is not a JSON object", name);
        else
            file_why(why, "%s is not a JSON object: %.200s at line %d", name, error.text, error.line);
        json_decref(j);
        return NULL;
    }
    return j;
}

/* Adds the files of the index to list, each once, and reads the index. Returns 0 and a reason. */
static int read_index(int dir, json_t *list, json_t **index, char why[WHY])
{
    char reason[WHY];
    const char *name;
    json_t *seen, *v, *map;
    *index = hf_read_json(dir, HF_INDEX, reason);
    map = json_object_get(*index, "weight_map");
    if (!json_is_object(map))
        return file_why(why, "%.400s; change: fetch the file again",
                        *index ? HF_INDEX " has no weight_map" : reason);
    seen = json_object();
    json_object_foreach(map, name, v) {
        const char *file = json_string_value(v);
        if (!file || !file_name_ok(file)) {
            json_decref(seen);
            return file_why(why, HF_INDEX ": the file of %.100s is not a plain name; change: fetch the file "
                            "again", name);
        }
        if (!json_object_get(seen, file))
            json_array_append(list, v);
        json_object_set_new(seen, file, json_true());
    }
    /* transformers has saved two models here, and would load the single file, the old one or the new one */
    int two = !json_object_get(seen, HF_SINGLE) && faccessat(dir, HF_SINGLE, F_OK, 0) == 0;
    json_decref(seen);
    return !two || file_why(why, "holds " HF_SINGLE " beside " HF_INDEX ", which names other files; change: "
                            "remove the one that is not of this model");
}

json_t *hf_files(int dir, json_t **index, char why[WHY])
{
    json_t *list = json_array();
    int ok = 1;
    *index = NULL;
    if (faccessat(dir, HF_INDEX, F_OK, 0) == 0)
        ok = read_index(dir, list, index, why);
    else if (faccessat(dir, HF_SINGLE, F_OK, 0) == 0)
        json_array_append_new(list, json_string(HF_SINGLE));
    else
        ok = file_why(why, "holds neither " HF_SINGLE " nor " HF_INDEX "; change: convert the weights to "
                      "safetensors (save_pretrained does)");
    if (ok)
        return list;
    json_decref(list);
    json_decref(*index);
    *index = NULL;
    return NULL;
}
